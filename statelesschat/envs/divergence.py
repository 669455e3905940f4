"""A penalty for moving away from a reference policy, as a reward."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from statelesschat.core.transition import credit
from statelesschat.core.types import Action, ChatState
from statelesschat.envs.env import Env, EnvState, as_partial, combine
from statelesschat.rewards.kl import ESTIMATORS, Estimator, kl_per_token

Reference = Callable[[ChatState, Action], Float[Array, "R"]]
"""A pure function of the conversation *before* the answer, and the action: float32[R], log p of each of its ids."""


@partial(jax.tree_util.register_dataclass, data_fields=["action", "reference_logprobs"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Referenced:
    """An action, and what the reference policy gives its ids: what `with_kl_reward` takes where it has no function."""

    action: Action
    reference_logprobs: Float[Array, "R"]  # float32, nats; unspecified from the action's length on


def with_kl_reward(
    env: Env,
    coefficient: float,
    *,
    estimator: Estimator = "k3",
    reference: Reference | None = None,
) -> Env:
    """Take ``coefficient`` times the estimated KL divergence from a reference off the reward, for each sampled id.

    The estimates (`rewards.kl_per_token`) are summed over the ids of the action that were written, the ids the loss
    mask holds, and credited to their turn. Actions need logprobs, so the config has to store them.

    Args:
        env: what it wraps.
        coefficient: nats of reward for a nat of divergence, 0 or more.
        estimator: ``"k1"``, ``"k2"`` or ``"k3"``.
        reference: `Reference`; by default steps take a `Referenced` action, with the logprobs the caller computed.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator={estimator!r}; give one of {', '.join(ESTIMATORS)}")
    if not 0 <= float(coefficient) < float("inf"):
        raise ValueError(f"coefficient={coefficient!r}; give a finite number of 0 or more")
    arrays = jnp.float32(coefficient), None if reference is None else as_partial(reference)
    return combine(env, _penalised, static=(estimator,), arrays=arrays)


def _penalised(
    estimator: Estimator, step: Any, arrays: Any, own: Any, state: EnvState, action: Action | Referenced
) -> tuple[EnvState, Any]:
    coefficient, reference = arrays
    before = state.chat
    if reference is None:
        if not isinstance(action, Referenced):
            raise TypeError(
                "with_kl_reward without a reference function takes Referenced(action, reference_logprobs); give those, "
                "or reference="
            )
        action, logprobs = action.action, action.reference_logprobs
    else:
        if isinstance(action, Referenced):
            raise TypeError("with_kl_reward has a reference function, so it takes an Action, not Referenced")
        logprobs = reference(before, action)
    if action.logprobs is None:
        raise ValueError("with_kl_reward needs the action's logprobs; make_config(..., store_logprobs=True)")
    state = step(state, action)
    written = jnp.clip(jnp.minimum(action.length, before.config.capacity - before.length), 0, action.tokens.shape[0])
    written = jnp.where(before.awaits_answer & ~before.done, written, 0)
    mask = jnp.arange(action.tokens.shape[0]) < written
    penalty = coefficient * jnp.sum(kl_per_token(action.logprobs, logprobs, mask, estimator))
    return dataclasses.replace(state, chat=credit(state.chat, -penalty, before.turn)), own
