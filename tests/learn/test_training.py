"""The training loop: it learns, it resumes to the bit, it stops at what is not finite, and it loses nothing."""

import dataclasses
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import statelesschat as sc
from statelesschat.learn import (
    CheckpointError,
    Recipe,
    TrainState,
    begin_imitation,
    begin_training,
    imitate,
    restore_checkpoint,
    save_checkpoint,
    token_logprobs,
    train,
)
from statelesschat.policies import Sampling, init_params
from tests.learn.worlds import MODEL, SHAPE, recipe, world

ENV, TABLE, CODEC = world()
RECIPE = recipe(CODEC.config)
ABOUT = {"task": "echo"}


def begun(recipe: Recipe = RECIPE, seed: int = 0) -> TrainState:
    return begin_training(recipe, ENV, TABLE, init_params(SHAPE, jax.random.key(seed)), seed)


def bits(state: TrainState) -> Any:
    return [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in jax.tree.leaves(state)
    ]


def test_training_raises_the_reward_and_tells_of_each_update() -> None:
    state, metrics = train(RECIPE, ENV, TABLE, begun(), 4)
    compiled, rewards = train._cache_size(), metrics.reward.tolist()
    for _ in range(13):
        state, metrics = train(RECIPE, ENV, TABLE, state, 4)
        rewards += metrics.reward.tolist()
    assert train._cache_size() == compiled
    assert np.mean(rewards[:5]) < 0.2 and np.mean(rewards[-10:]) > 0.5
    assert metrics.good.all() and int(state.update) == 56 and metrics.reward.shape == (4,)
    assert (metrics.finished == 32).all() and (metrics.faults == 0).all()


def test_a_run_that_is_saved_and_restored_is_the_same_to_the_bit(tmp_path: Path) -> None:
    through, _ = train(RECIPE, ENV, TABLE, begun(), 4)
    through, metrics = train(RECIPE, ENV, TABLE, through, 4)
    half, _ = train(RECIPE, ENV, TABLE, begun(), 4)
    save_checkpoint(tmp_path, half, ABOUT)
    restored = restore_checkpoint(tmp_path, begun(seed=9), ABOUT)
    chex.assert_trees_all_equal(bits(restored), bits(half))
    resumed, again = train(RECIPE, ENV, TABLE, restored, 4)
    chex.assert_trees_all_equal(bits(resumed), bits(through))
    chex.assert_trees_all_equal(again, metrics)


@pytest.mark.slow
def test_conversations_go_on_over_updates_and_are_saved_half_finished(tmp_path: Path) -> None:
    one_turn = recipe(CODEC.config, turns=1)
    state, metrics = train(one_turn, ENV, TABLE, begun(one_turn), 1)
    assert int(metrics.finished[0]) < 32 and state.states.chat.turn.max() == 1  # most were asked again
    save_checkpoint(tmp_path, state, ABOUT)
    restored = restore_checkpoint(tmp_path, begun(one_turn), ABOUT)
    state, metrics = train(one_turn, ENV, TABLE, state, 1)
    _, again = train(one_turn, ENV, TABLE, restored, 1)
    chex.assert_trees_all_equal(metrics, again)
    assert int(metrics.finished[0]) > 0


def test_a_loss_that_is_not_finite_stops_the_run_before_it_does_harm() -> None:
    rates = optax.join_schedules([optax.constant_schedule(0.01), optax.constant_schedule(jnp.nan)], [3])
    broken = recipe(CODEC.config, optimizer=optax.adam(rates))
    state, metrics = train(broken, ENV, TABLE, begun(broken), 4)
    # The fourth step would make the params NaN.
    assert bool(state.halted) and metrics.good.tolist() == [True] * 3 + [False] and int(state.update) == 3
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    before = jax.tree.map(jnp.copy, state)
    state, metrics = train(broken, ENV, TABLE, state, 4)
    chex.assert_trees_all_equal(bits(state), bits(before))
    assert not metrics.good.any()


@pytest.mark.slow
def test_the_tail_of_an_epoch_is_learned_from_once() -> None:
    env, table, codec = world(rows=3)
    small = recipe(codec.config, batch=8, repeats=4)  # two prompts to an update, three to an epoch
    state = begin_training(small, env, table, init_params(SHAPE, jax.random.key(0)), 0)
    _, metrics = train(small, env, table, state, 6)
    assert sorted(set(metrics.finished.tolist())) == [4, 8] and metrics.finished.sum() in (36, 40)


@pytest.mark.slow
def test_minibatches_epochs_kl_and_reinforce_run_and_stay_finite() -> None:
    for options in (
        {"minibatch": 8, "microbatch": 4, "epochs": 2, "kl_coefficient": 0.1, "rows": 16},
        {"loss": "reinforce", "baseline": "group_ratio", "negative": 0.0, "minibatch": 8, "discount": 0.0},
        {"loss": "reinforce", "baseline": "batch", "repeats": 1, "normalise": "sequence"},
    ):
        chosen = recipe(CODEC.config, **options)
        state, metrics = train(chosen, ENV, TABLE, begun(chosen), 3)
        assert metrics.good.all() and jnp.isfinite(metrics.loss).all()
        if options.get("kl_coefficient"):
            assert float(metrics.kl[-1]) > 0
            chex.assert_trees_all_equal(state.reference, init_params(SHAPE, jax.random.key(0)))


def test_imitation_learns_the_answers_shown() -> None:
    plain = sc.Codec(sc.load_tokenizer(None), dataclasses.replace(CODEC.config, store_logprobs=False))
    answers = plain.encode_actions([chr(int(letter)) for letter in TABLE.info.task])
    state = begin_imitation(RECIPE, init_params(SHAPE, jax.random.key(1)), 0)
    losses = []
    for _ in range(3):
        state, loss = imitate(RECIPE, ENV, TABLE, answers, state, 20)
        losses += loss.tolist()
    assert losses[0] > 4 and losses[-1] < 0.3


def test_what_the_sampler_stored_is_what_the_trainer_computes() -> None:
    state = begun()
    policy = RECIPE.policy()
    states, _ = sc.rollout(ENV, policy, state.params, state.states, jax.random.key(3), 2)
    tokens, _ = jax.vmap(sc.prompt)(states.chat)
    mask = np.asarray(jax.vmap(sc.loss_mask)(states.chat))
    computed = np.asarray(token_logprobs(MODEL, CODEC.config, state.params, tokens))
    stored = np.asarray(jax.vmap(sc.sampled_logprobs)(states.chat))
    np.testing.assert_allclose(computed[mask], stored[mask], atol=1e-4)
    assert (computed[:, 0] == 0).all()


def test_checkpoints_of_other_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        restore_checkpoint(tmp_path / "none", begun(), ABOUT)
    save_checkpoint(tmp_path, begun(), ABOUT)
    with pytest.raises(CheckpointError, match=r"task: saved 'echo', now 'other'\); give the same options"):
        restore_checkpoint(tmp_path, begun(), {"task": "other"})
    wider = dataclasses.replace(RECIPE, batch=64)
    with pytest.raises(CheckpointError, match="of other sizes"):
        restore_checkpoint(tmp_path, begin_training(wider, ENV, TABLE, init_params(SHAPE, jax.random.key(0)), 0), ABOUT)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"repeats": 1}, "a group of one there is nothing to compare"),
        ({"batch": 30}, "no multiple of repeats=4"),
        ({"batch": 0}, "batch=0"),
        ({"minibatch": 24}, "no multiple of minibatch=24"),
        ({"microbatch": 5}, "microbatch=5 does not divide"),
        ({"sampling": Sampling(0.0)}, "temperature above 0"),
        ({"sampling": Sampling(top_p=0.9)}, "temperature above 0"),
        ({"buckets": (64,)}, "the last one the capacity, 128"),
        ({"loss": "ppo"}, "'grpo' or 'reinforce'"),
        ({"baseline": "critic"}, "give one of group"),
        ({"loss": "reinforce", "epochs": 2}, "need loss='grpo'"),
        ({"kl_coefficient": 0.1, "kl_estimator": "k1"}, "'k2' or 'k3'"),
        ({"max_tokens": 9}, "1 to 3"),
    ],
)
def test_recipes_that_cannot_be_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        recipe(CODEC.config, **options)


def test_states_and_params_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match="store_logprobs=True"):
        recipe(dataclasses.replace(CODEC.config, store_logprobs=False))
    other = dataclasses.replace(SHAPE, width=64)
    with pytest.raises(ValueError, match="the model has"):
        begin_training(RECIPE, ENV, TABLE, init_params(other, jax.random.key(0)), 0)
    longer = recipe(dataclasses.replace(CODEC.config, overflow_reward=-1.0))
    with pytest.raises(ValueError, match="another config"):
        begin_training(longer, ENV, TABLE, init_params(SHAPE, jax.random.key(0)), 0)
