"""The sampler: what a cache must not change, what ends an answer, and what it is told at once."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat.core.types import Count, Flag, Kind
from statelesschat.policies import GREEDY, Model, Sampling, TransformerConfig, init_params, sampler, transformer
from tests.policies.models import MODEL, SHAPE, full_logits, sharp_params, talk


@jax.jit
def whole(params: Any, tokens: Any) -> Any:
    return full_logits(MODEL, params, tokens)


def start(seed: int = 0, **options: Any) -> tuple[sc.Env, sc.EnvState]:
    env, table = talk(**options)
    return env, sc.begin(env, table, seed)


def greedy_by_hand(env: sc.Env, params: Any, states: sc.EnvState, turns: int, max_tokens: int) -> sc.EnvState:
    """Each id by a forward pass over the whole conversation; nothing is kept."""
    step = jax.jit(jax.vmap(env.step))
    for _ in range(turns):
        tokens, length = (np.array(x) for x in jax.vmap(sc.prompt)(states.chat))
        done = np.asarray(states.done)
        batch, capacity = tokens.shape
        action = np.zeros((batch, max_tokens), np.int32)
        count, active = np.zeros(batch, np.int32), ~done
        for index in range(max_tokens):
            logits = np.asarray(whole(params, jnp.asarray(tokens)))
            for row in np.flatnonzero(active):
                best = int(np.argmax(logits[row, length[row] - 1]))
                action[row, index] = best
                count[row] += 1
                if length[row] < capacity:
                    tokens[row, length[row]] = best
                length[row] += 1
                active[row] = best not in states.chat.config.template.stop_ids and length[row] < capacity
        zeros = jnp.zeros(action.shape, jnp.float32)
        states = step(states, sc.Action(jnp.asarray(action), jnp.asarray(count), zeros, jnp.ones(batch, bool)))
    return states


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (0, {}),
        (1, {}),
        (2, {"chunk": 7, "shared": 3, "rows": 2, "slots": (40, 80, 110)}),
        *(
            pytest.param(seed, options, marks=pytest.mark.slow)
            for seed in (3, 4, 5)
            for options in (
                {},
                {"chunk": 7},
                {"shared": 2},
                {"rows": 3},
                {"slots": (60,)},
                {"chunk": 1, "shared": 6, "rows": 1, "slots": (1, 64)},
            )
        ),
    ],
)
def test_the_cache_changes_nothing(seed: int, options: dict[str, Any]) -> None:
    env, states = start(capacity=200)  # the last turns run out of room
    params = sharp_params(seed)
    policy = sampler(MODEL, states.chat.config, GREEDY, **options)
    run = jax.jit(sc.rollout, static_argnames="num_turns")
    cached, turns = run(env, policy, params, states, jax.random.key(seed), num_turns=4)
    by_hand = greedy_by_hand(env, params, states, 4, 6)
    chex.assert_trees_all_equal(jax.vmap(sc.prompt)(cached.chat), jax.vmap(sc.prompt)(by_hand.chat))
    chex.assert_trees_all_equal(cached.chat.counts, by_hand.chat.counts)
    assert len(set(states.chat.length.tolist())) > 1  # rows of different lengths
    assert int(turns.length[-1].max()) > int(states.chat.length.max()) + 50


def forced(params: Any, states: sc.EnvState, sampling: Sampling) -> Any:
    """Log-probabilities of all ids but the first, by one pass over the finished conversations."""
    tokens, _ = jax.vmap(sc.prompt)(states.chat)
    logprobs = jax.nn.log_softmax(full_logits(MODEL, params, tokens)[:, :-1] / np.float32(sampling.temperature))
    return jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=-1)[..., 0]


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.slow), 0.7])
def test_sampled_logprobs_are_those_of_a_pass_over_the_whole(temperature: float) -> None:
    env, states = start(capacity=240)
    params, sampling = sharp_params(3), Sampling(temperature=temperature)
    policy = sampler(MODEL, states.chat.config, sampling)
    states, _ = jax.jit(sc.rollout, static_argnames="num_turns")(env, policy, params, states, jax.random.key(1), 4)
    mask = np.asarray(jax.vmap(sc.loss_mask)(states.chat))[:, 1:]
    stored = np.asarray(jax.vmap(sc.sampled_logprobs)(states.chat))[:, 1:]
    assert mask.sum() > 60
    np.testing.assert_allclose(stored[mask], np.asarray(forced(params, states, sampling))[mask], atol=1e-4)
    assert not stored[~mask].any()


def test_logprobs_under_the_model_and_under_the_sampling_are_both_there() -> None:
    env, states = start()
    params, sampling = sharp_params(4), Sampling(top_k=5)
    policies = [sampler(MODEL, states.chat.config, sampling, stored_logprobs=kind) for kind in ("sampling", "model")]  # type: ignore[arg-type]
    key = jax.random.key(0)
    (memory, action), (_, under_model) = [
        jax.jit(policy.act)(params, policy.init(params, states), key, states) for policy in policies
    ]
    chex.assert_trees_all_equal(action.tokens, under_model.tokens)
    chex.assert_trees_all_equal(action.logprobs, memory.sampling_logprobs)
    chex.assert_trees_all_equal(under_model.logprobs, memory.model_logprobs)
    real = np.arange(action.tokens.shape[1]) < np.asarray(action.length)[:, None]
    assert (np.asarray(memory.sampling_logprobs) > np.asarray(memory.model_logprobs))[real].all()
    after = jax.vmap(env.step)(states, under_model)
    mask = np.asarray(jax.vmap(sc.loss_mask)(after.chat))[:, 1:]
    plain = np.asarray(forced(params, after, Sampling()))[mask]
    np.testing.assert_allclose(np.asarray(memory.model_logprobs)[real], plain, atol=1e-4)


def scripted_model(script: dict[int, int], vocab: int = 259) -> Model:
    """A model whose next id is set by the last one."""

    def apply(params: Any, tokens: Any, positions: Any, cache: Any) -> Any:
        table = np.full(vocab, 65, np.int32)
        for last, following in script.items():
            table[last] = following
        return jax.nn.one_hot(jnp.asarray(table)[tokens], vocab) * np.float32(50), cache

    return Model(apply, lambda batch, slots: jnp.zeros((batch, slots)), vocab)


def test_an_answer_ends_with_a_stop_id_or_where_the_budget_does() -> None:
    env, states = start(store_logprobs=False)
    config = states.chat.config
    newline, end = 10, config.template.stop_id
    model = scripted_model({newline: 66, 66: 67, 67: end})
    policy = sampler(model, config, GREEDY)
    _, action = policy.act(None, policy.init(None, states), jax.random.key(0), states)
    assert action.tokens[:, :3].tolist() == [[66, 67, end]] * 6 and action.length.tolist() == [3] * 6
    policy = sampler(model, config, GREEDY, stop_ids=(66,))
    _, action = policy.act(None, policy.init(None, states), jax.random.key(0), states)
    assert action.length.tolist() == [1] * 6
    policy = sampler(model, config, GREEDY, max_tokens=2)
    _, action = policy.act(None, policy.init(None, states), jax.random.key(0), states)
    assert action.tokens.tolist() == [[66, 67]] * 6 and action.finished.all()
    assert action.logprobs is None


def test_rows_that_do_not_answer_are_given_nothing_and_a_full_row_only_what_fits() -> None:
    env, states = start(store_logprobs=False)
    config = states.chat.config
    policy = sampler(scripted_model({}), config, GREEDY)
    chat = states.chat
    counts = chat.counts.at[0, Count.FLAGS].set(int(Flag.TRUNCATED))
    counts = counts.at[1, Count.NEXT].set(int(Kind.NONE))
    counts = counts.at[2, Count.LENGTH].set(config.capacity - 2)
    counts = counts.at[3, Count.LENGTH].set(config.capacity)
    states = dataclasses.replace(states, chat=dataclasses.replace(chat, counts=counts))
    _, action = policy.act(None, policy.init(None, states), jax.random.key(0), states)
    assert action.length.tolist() == [0, 0, 2, 0, 6, 6]


def test_the_loop_ends_when_all_rows_have_stopped_and_nothing_runs_for_rows_that_are_done() -> None:
    calls: list[int] = []
    env, states = start(store_logprobs=False)
    config = states.chat.config
    inner = scripted_model({10: config.template.stop_id})

    def apply(params: Any, tokens: Any, positions: Any, cache: Any) -> Any:
        jax.debug.callback(lambda: calls.append(tokens.shape[1]))
        return inner.apply(params, tokens, positions, cache)

    policy = sampler(Model(apply, inner.init_cache, 259), config, GREEDY)
    memory = policy.init(None, states)
    jax.block_until_ready(policy.act(None, memory, jax.random.key(0), states))
    jax.effects_barrier()
    assert calls.count(1) == 1  # the longest answer had one id
    calls.clear()
    over = dataclasses.replace(states, chat=jax.vmap(sc.terminate)(states.chat))
    jax.block_until_ready(policy.act(None, memory, jax.random.key(0), over))
    jax.effects_barrier()
    assert calls == []


def test_every_id_is_fed_once() -> None:
    fed: list[int] = []
    env, states = start(count=1, capacity=200)

    def apply(params: Any, tokens: Any, positions: Any, cache: Any) -> Any:
        jax.debug.callback(lambda where: fed.extend(np.asarray(where)[0].tolist()), positions, ordered=True)
        return MODEL.apply(params, tokens, positions, cache)

    policy = sampler(Model(apply, MODEL.init_cache, 259), states.chat.config, GREEDY, chunk=1)
    states, _ = sc.rollout(env, policy, sharp_params(0), states, jax.random.key(0), 3)
    jax.block_until_ready(states)
    jax.effects_barrier()
    last = int(states.chat.counts[0, Count.DELTA]) - 1  # the last sampled id, which nothing followed
    assert fed == list(range(last))


def test_rows_that_begin_anew_are_fed_from_their_beginning() -> None:
    env, table = talk(5, max_turns=2)
    cursor = sc.data.make_cursor(0)
    draw = lambda cursor, where: sc.data.next_batch(cursor, table, 3, where=where)  # noqa: E731
    cursor, data, _ = sc.data.next_batch(cursor, table, 3)
    states, params = sc.begin(env, data, 0), sharp_params(5)
    policy = sampler(MODEL, states.chat.config)

    def keep(total: Any, states: sc.EnvState, ended: Any) -> Any:
        return jnp.where(ended[:, None], jax.vmap(sc.prompt)(states.chat)[0], total[0]), jnp.where(
            ended[:, None], jax.vmap(sc.sampled_logprobs)(states.chat), total[1]
        )

    blank = jnp.zeros((3, 320), jnp.int32), jnp.zeros((3, 320), jnp.float32)
    run = jax.jit(lambda states, cursor: sc.collect(
        env, policy, params, states, jax.random.key(2), 6, source=cursor, draw=draw, total=blank, hand_over=keep
    ))  # fmt: skip
    _, _, (tokens, stored), turns = run(states, cursor)
    assert turns.ended.sum() >= 8  # every row ended two or three times
    again = jax.nn.log_softmax(full_logits(MODEL, params, tokens)[:, :-1])
    again = jnp.take_along_axis(again, tokens[:, 1:, None], axis=-1)[..., 0]
    sampled = np.asarray(stored[:, 1:]) != 0
    assert sampled.sum() > 20
    np.testing.assert_allclose(np.asarray(stored[:, 1:])[sampled], np.asarray(again)[sampled], atol=1e-4)


def test_ids_the_tokenizer_lacks_are_never_sampled_and_one_trace_serves_all_turns() -> None:
    env, states = start()
    shape = TransformerConfig(vocab_size=512, num_layers=1, width=16, num_heads=2, mlp_width=16)
    model, params = transformer(shape), init_params(shape, jax.random.key(0))
    traced = chex.assert_max_traces(lambda *x: sampler(model, states.chat.config).act(*x), n=1)
    act = jax.jit(traced)
    memory = sampler(model, states.chat.config).init(params, states)
    for turn in range(3):
        memory, action = act(params, memory, jax.random.key(turn), states)
        assert int(action.tokens.max()) < 259
        states = jax.vmap(env.step)(states, action)


def test_an_equal_sampler_is_the_same_constant_of_jit() -> None:
    _, states = start()
    make = lambda: sampler(transformer(dataclasses.replace(SHAPE)), states.chat.config, Sampling(top_p=0.5))  # noqa: E731
    assert jax.tree.structure(make()) == jax.tree.structure(make())


def test_bad_options_are_refused() -> None:
    _, states = start()
    config = states.chat.config
    with pytest.raises(ValueError, match="logits for 100 ids, the tokenizer has 259"):
        sampler(transformer(dataclasses.replace(SHAPE, vocab_size=100)), config)
    for options, told in (
        ({"max_tokens": 7}, "1 to 6"),
        ({"max_tokens": 0}, "1 to 6"),
        ({"stop_ids": (300,)}, "below 259"),
        ({"stored_logprobs": "both"}, "'sampling' or 'model'"),
        ({"chunk": 0}, "chunk=0"),
    ):
        with pytest.raises(ValueError, match=told):
            sampler(MODEL, config, **options)  # type: ignore[arg-type]
    policy = sampler(MODEL, config)
    other = dataclasses.replace(SHAPE, width=64)
    with pytest.raises(ValueError, match=r"param .*embed.* is float32\[259, 64\], the model has float32\[259, 32\]"):
        policy.init(init_params(other, jax.random.key(0)), states)
    with pytest.raises(ValueError, match=r"missing: .*layers.*1"):
        policy.init(init_params(dataclasses.replace(SHAPE, num_layers=1), jax.random.key(0)), states)
    with pytest.raises(ValueError, match="another config"):
        policy.init(sharp_params(0), start(capacity=300)[1])
    with pytest.raises(ValueError, match="batch of states"):
        policy.init(sharp_params(0), jax.tree.map(lambda leaf: leaf[0], states))
