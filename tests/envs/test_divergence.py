"""The penalty for moving away from a reference policy."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat.testing import api_test
from tests import toy
from tests.envs.test_combinators import B, answers, data, more, start, step

CONFIG = toy.config(store_logprobs=True)
OURS, THEIRS = -1.0, -1.5


def half(state: sc.ChatState, action: sc.Action) -> Any:
    """A reference that gives every id log p = -1.5."""
    return jnp.full(action.tokens.shape, THEIRS, jnp.float32)


def acted(*ids: Any) -> sc.Action:
    made = [toy.action([*i, toy.END], logprobs=[OURS] * (len(i) + 1)) for i in ids]
    return jax.tree.map(lambda *x: jnp.stack(x), *made)


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.5), ("k2", 0.125), ("k3", float(np.expm1(-0.5) + 0.5))])
def test_each_sampled_id_pays(estimator: Any, value: float) -> None:
    env = sc.with_kl_reward(sc.chat_env(CONFIG), 0.1, estimator=estimator, reference=half)
    states = step(env, start(env, data(CONFIG)), acted([1], [1, 2], [1, 2, 3], []))
    assert np.allclose(states.reward, [-0.1 * value * n for n in (2, 3, 4, 1)], atol=1e-6)
    assert np.allclose(states.chat.turn_rewards[:, 0], states.reward)
    mask = jax.vmap(sc.loss_mask)(states.chat)
    assert np.allclose(states.reward, -0.1 * value * np.asarray(mask).sum(1), atol=1e-6)


def test_the_coefficient_counts_and_0_is_no_penalty() -> None:
    env = [sc.with_kl_reward(sc.chat_env(CONFIG), c, reference=half) for c in (0, 1, 2)]
    none, one, two = (step(e, start(e, data(CONFIG)), acted([1], [1], [1], [1])).reward for e in env)
    assert (none == 0).all() and (one < 0).all() and np.allclose(two, 2 * one)


def test_logprobs_of_the_reference_may_come_with_the_action() -> None:
    env = sc.with_kl_reward(sc.chat_env(CONFIG), 0.1, reference=half)
    other = sc.with_kl_reward(sc.chat_env(CONFIG), 0.1)
    action = acted([1], [1, 2], [1, 2, 3], [])
    given = jnp.where(
        jnp.arange(8)[None] < action.length[:, None], jnp.float32(THEIRS), jnp.nan
    )  # beyond the length: anything
    one = step(env, start(env, data(CONFIG)), action)
    two = step(other, start(other, data(CONFIG)), sc.Referenced(action, given))
    assert one.reward.tolist() == two.reward.tolist()


def test_only_what_is_written_pays() -> None:
    env = sc.with_kl_reward(sc.with_reply(sc.chat_env(CONFIG), more), 1.0, estimator="k1", reference=half)
    states = start(env, data(CONFIG, turn_limits=(1, 1, 4, 4)))
    states = step(env, states, acted([1], [1], [1], [1]))
    states = step(env, states, acted([1], [1], [1], [1]))
    assert states.reward.tolist() == [0, 0, -1, -1]  # the reply pays nothing, a row that is done neither
    assert states.chat.turn_rewards[2:, :2].tolist() == [[-1, -1], [-1, -1]]
    narrow = toy.config(store_logprobs=True, capacity=24)
    env = sc.with_kl_reward(sc.chat_env(narrow), 1.0, estimator="k1", reference=half)
    states = start(env, data(narrow))
    states = dataclasses.replace(states)
    room = 24 - int(states.chat.length[0])
    paid = 0.0
    for _ in range(4):
        action = acted(*[[1] * 6] * B)
        action = dataclasses.replace(action, finished=jnp.zeros(B, bool))
        states = step(env, states, action)
        paid += float(states.reward[0])
    assert paid == -0.5 * room


def test_the_laws_hold() -> None:
    api_test(sc.with_kl_reward(sc.with_reply(sc.chat_env(CONFIG), more), 0.5, reference=half), data(CONFIG))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"estimator": "k4"}, ValueError, "k1, k2, k3"),
        ({"coefficient": -1.0}, ValueError, "coefficient"),
        ({"coefficient": float("nan")}, ValueError, "coefficient"),
        ({"reference": 3}, TypeError, "function"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], error: Any, message: str) -> None:
    given = {"coefficient": 1.0} | arguments
    with pytest.raises(error, match=message):
        sc.with_kl_reward(sc.chat_env(CONFIG), **given)


def test_actions_that_lack_what_is_needed_say_so() -> None:
    env = sc.with_kl_reward(sc.chat_env(CONFIG), 1.0)
    with pytest.raises(TypeError, match="Referenced"):
        step(env, start(env, data(CONFIG)), acted([1], [1], [1], [1]))
    plain = toy.config()
    env = sc.with_kl_reward(sc.chat_env(plain), 1.0, reference=half)
    with pytest.raises(ValueError, match="logprobs"):
        step(env, start(env, data(plain)), answers([1], [1], [1], [1]))
