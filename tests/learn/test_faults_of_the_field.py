"""Faults that people report of training loops, each as a test on what is sampled here and what is learned from it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat.data import from_iterable
from statelesschat.learn import Recipe, begin_training, grpo_loss, reinforce_loss, token_logprobs, token_weights, train
from statelesschat.learn.windows import read_batch
from statelesschat.policies import Model, init_params, sampler
from tests.learn.worlds import SHAPE, recipe, world
from tests.policies.models import MODEL, sharp_params, talk

ENV, TABLE = talk(4)
STATES = sc.begin(ENV, TABLE, 0)
RUN = jax.jit(sc.rollout, static_argnames="num_turns")


def sampled(states: sc.EnvState = STATES, seed: int = 0) -> sc.ChatState:
    """After two more answers."""
    policy = sampler(MODEL, states.chat.config)
    return RUN(ENV, policy, sharp_params(0), states, jax.random.key(seed), num_turns=2)[0].chat


def test_a_padding_id_that_is_also_the_stop_id() -> None:
    tokenizer = sc.load_tokenizer(None)
    tokenizer.pad_token = tokenizer.eos_token
    config = sc.make_config(
        tokenizer, capacity=64, max_messages=4, max_message_len=32, max_response_len=6, max_turns=2, store_logprobs=True
    )
    stop = config.template.pad_id
    assert config.template.stop_ids == (stop,)
    codec = sc.Codec(tokenizer, config)
    env = sc.chat_env(config)
    states = sc.begin(env, from_iterable(["?", "What then?"], codec), 0)
    # A model that likes to stop: of five answers some have one id, some more, some have no stop id.
    likely = lambda tokens: jnp.zeros((*tokens.shape, 259)).at[..., stop].set(4.5)  # noqa: E731
    model = Model(lambda params, tokens, positions, cache: (likely(tokens) + params, cache), lambda b, s: (), 259)
    seen = set()
    for seed in range(5):
        memory = sampler(model, config).init(jnp.float32(0), states)
        _, action = sampler(model, config).act(jnp.float32(0), memory, jax.random.key(seed), states)
        after = jax.vmap(env.step)(states, action).chat
        mask = np.asarray(jax.vmap(sc.loss_mask)(after))
        for row, (length, begins) in enumerate(zip(action.length.tolist(), states.chat.length.tolist())):
            answer = action.tokens[row, :length].tolist()
            assert stop not in answer[:-1] and (answer[-1] == stop or length == 6)
            # Exactly the ids that were sampled, the stop id among them; padding of the same id is not.
            assert np.flatnonzero(mask[row]).tolist() == list(range(begins, begins + length))
            seen.add((length, answer[-1] == stop))
        weights = token_weights(mask)
        assert float(weights.sum()) == pytest.approx(1) and (np.asarray(weights)[~mask] == 0).all()
    assert (1, True) in seen and len(seen) > 1


def test_ids_of_a_tool_inside_an_answer_have_no_gradient() -> None:
    chat = jax.vmap(sc.prefill)(sampled(), jnp.full((4, 4), 65, jnp.int32), jnp.full(4, 4, jnp.int32))
    chat = sampled(dataclasses.replace(STATES, chat=chat), seed=1)
    batch = read_batch(chat, jnp.ones((4, 4)), jnp.ones(4, bool))
    mask = np.asarray(batch.loss_mask)
    assert mask.any() and (np.asarray(batch.tokens) == 65).sum() >= 16  # what was put in is there, and not masked in
    # A model whose params are its logits: the gradient of the params is that of each logit.
    logits = jax.random.normal(jax.random.key(2), (4, chat.config.capacity, 259))
    model = Model(lambda params, tokens, positions, cache: (params, cache), lambda b, s: (), 259)

    def losses(logits: Any) -> Any:
        of = token_logprobs(model, chat.config, logits, batch.tokens)
        grpo = grpo_loss(of, batch.advantages, loss_mask=batch.loss_mask, sampled_logprobs=batch.sampled_logprobs)
        return grpo.loss + reinforce_loss(of, batch.advantages, loss_mask=batch.loss_mask).loss

    gradient = np.asarray(jax.grad(losses)(logits))
    predicts = np.pad(mask[:, 1:], ((0, 0), (0, 1)))  # logits at t are of the id at t + 1
    assert (gradient[~predicts] == 0).all() and (np.abs(gradient[predicts]).sum(-1) > 0).all()


def test_sampled_ids_are_what_losses_divide_by() -> None:
    tries = dataclasses.replace(TABLE, turn_limit=jnp.array([1, 2, 1, 2], jnp.int32))
    mask = jax.vmap(sc.loss_mask)(sampled(sc.begin(ENV, tries, 0)))
    counts = np.asarray(mask.sum(axis=1))
    assert len(set(counts.tolist())) > 1  # rows with different numbers of ids
    ones = jnp.ones(mask.shape)
    for normalise, divisor in (("token", counts.sum()), ("sequence", counts[0] * 4)):
        only_first = mask & (jnp.arange(4) == 0)[:, None]
        weights = token_weights(mask, normalise)  # type: ignore[arg-type]
        np.testing.assert_allclose(np.asarray(weights)[np.asarray(only_first)], 1 / divisor, rtol=1e-6)
        assert float(reinforce_loss(-ones, ones, loss_mask=mask, normalise=normalise).loss) == pytest.approx(1)  # type: ignore[arg-type]


def test_a_logprob_stands_at_its_own_id() -> None:
    chat = sampled()
    stored, mask = jax.vmap(sc.sampled_logprobs)(chat), np.asarray(jax.vmap(sc.loss_mask)(chat))
    computed = np.asarray(token_logprobs(MODEL, chat.config, sharp_params(0), jax.vmap(sc.prompt)(chat)[0]))
    np.testing.assert_allclose(np.asarray(stored)[mask], computed[mask], atol=1e-4)
    assert (np.asarray(stored)[~mask] == 0).all()
    # With them in their places every ratio is 1; one place off it is not.
    told = lambda old: grpo_loss(computed, jnp.ones(4), loss_mask=mask, sampled_logprobs=old)  # noqa: E731
    assert float(told(stored).ratio) == pytest.approx(1, abs=1e-4)
    assert abs(float(told(jnp.roll(stored, 1, axis=1)).ratio) - 1) > 0.1


@pytest.mark.slow
def test_groups_of_one() -> None:
    env, table, codec = world(rows=4)
    with pytest.raises(ValueError, match="a group of one there is nothing to compare"):
        recipe(codec.config, repeats=1)
    # A group of which one member is left to learn from has an advantage of 0, and nothing is NaN.
    alone = recipe(codec.config, repeats=1, baseline="batch", batch=1)
    state = begin_training(alone, env, table, init_params(SHAPE, jax.random.key(0)), 0)
    state, metrics = train(alone, env, table, state, 2)
    assert metrics.good.all() and metrics.loss.tolist() == [0, 0] and metrics.informative.tolist() == [0, 0]
    assert not state.halted


def test_lengths_do_not_compile_anew() -> None:
    """Prompts of all lengths, answers of all lengths, and the short end of an epoch: one trace of the whole loop."""
    traces = []
    env, table, codec = world(rows=5)
    assert len(set(table.length.tolist())) == 3
    plain = recipe(codec.config, batch=8, repeats=4, buckets=(48, 64, 128))

    def apply(params: Any, tokens: Any, positions: Any, cache: Any) -> Any:
        traces.append(tokens.shape)
        return plain.model.apply(params, tokens, positions, cache)

    chosen = Recipe(**{
        field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)
    } | {"model": Model(apply, plain.model.init_cache, 259)})  # fmt: skip
    run = jax.jit(lambda state: train.__wrapped__(chosen, env, table, state, 3), donate_argnums=0)
    state = begin_training(chosen, env, table, init_params(SHAPE, jax.random.key(0)), 0)
    state, first = run(state)
    once = len(traces)
    finished = first.finished.tolist()
    for _ in range(3):
        state, metrics = run(state)
        finished += metrics.finished.tolist()
    assert len(traces) == once and run._cache_size() == 1
    assert 4 in finished and 8 in finished  # whole batches, and an epoch's end
    windows = {width for batch, width in traces if batch == 8 and width > 40}
    assert windows == {48, 64, 128}  # the gradient is traced once for each bucket
