"""Which part of what an episode brought is owed to which of its turns, and to which ids."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from statelesschat.rewards.groups import group_advantages

Baseline = Literal["group", "group_scaled", "group_ratio", "batch", "none"]
BASELINES = ("group", "group_scaled", "group_ratio", "batch", "none")


def turn_returns(turn_rewards: Float[Array, "T"], discount: float = 1.0) -> Float[Array, "T"]:
    """What each turn and those after it brought, later ones ``discount`` times less for each turn. float32[T].

    Example:
        >>> import numpy as np
        >>> turn_returns(np.float32([0, 1, 0]), 0.5).tolist()
        [0.5, 1.0, 0.0]
    """
    if not 0 <= discount <= 1:
        raise ValueError(f"discount={discount}; give a number from 0 (each turn alone) to 1 (the whole episode)")

    def back(after: Array, reward: Array) -> tuple[Array, Array]:
        value = reward + jnp.float32(discount) * after
        return value, value

    return jax.lax.scan(back, jnp.float32(0), jnp.asarray(turn_rewards), reverse=True)[1]


def turn_advantages(
    returns: Float[Array, "B T"],
    turns: Int[Array, "B"],
    group_id: Int[Array, "B"],
    valid: Bool[Array, "B"],
    *,
    repeats: int,
    baseline: Baseline = "group_scaled",
) -> Float[Array, "B T"]:
    """Each turn's return less what is to be expected of that turn; 0 for turns that were not taken. float32[B, T].

    Turns are compared with the same turns of others only: with those of the group (``"group"``; ``"group_scaled"``:
    over their standard deviation; ``"group_ratio"``: over their mean, for rewards from 0 on, so that a group whose one
    success is rare weighs as much as one that often succeeds), see `group_advantages`; or with those of the whole batch
    (``"batch"``). ``"none"``: the return.

    Sources: GRPO (Shao et al., 2024), Dr. GRPO (Liu et al., 2025); over the mean, the gradient is that of the
    log-likelihood of success, as in maximum-likelihood reinforcement learning (Tajwar et al., 2026).

    Raises:
        ValueError: a group baseline with ``repeats`` below 2.
    """
    if baseline not in BASELINES:
        raise ValueError(f"baseline={baseline!r}; give one of {', '.join(BASELINES)}")
    took = (jnp.arange(returns.shape[1])[None, :] < turns[:, None]) & valid[:, None]
    if baseline == "none":
        return jnp.where(took, returns, jnp.float32(0))
    if baseline == "batch":
        count = jnp.maximum(jnp.sum(took, axis=0, keepdims=True, dtype=jnp.int32), 1).astype(jnp.float32)
        mean = jnp.sum(jnp.where(took, returns, jnp.float32(0)), axis=0, keepdims=True) / count
        return jnp.where(took, returns - mean, jnp.float32(0))

    def of_turn(returns: Array, took: Array) -> Array:
        centred = group_advantages(returns, group_id, took, repeats=repeats, scale=baseline == "group_scaled")
        if baseline != "group_ratio":
            return centred
        mean = jnp.where(took, returns - centred, jnp.float32(0))
        return jnp.where(mean > 0, centred / jnp.where(mean > 0, mean, jnp.float32(1)), jnp.float32(0))

    return jax.vmap(of_turn, in_axes=1, out_axes=1)(returns, took)
