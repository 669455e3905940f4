"""Policy-gradient losses of log-probabilities: pure, and never without a loss mask."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from statelesschat.rewards.kl import ESTIMATORS, Estimator, kl_per_token

Normalise = Literal["token", "sequence"]
_NORMALISERS = ("token", "sequence")


class Loss(NamedTuple):
    """A loss and what is worth watching beside it; all float32 scalars, means over the masked-in ids by weight."""

    loss: Float[Array, ""]  # what is minimised
    kl: Float[Array, ""]  # estimated KL(policy || reference) in nats; 0 without a reference
    ratio: Float[Array, ""]  # probability now over probability when sampled; 1 on policy
    clipped: Float[Array, ""]  # share of ids whose gradient the clipping holds back


def token_weights(loss_mask: Bool[Array, "B L"], normalise: Normalise = "token") -> Float[Array, "B L"]:
    """What each id counts for; over the batch they sum to 1, or to 0 where no id is masked in. float32[B, L].

    ``"token"``: every sampled id weighs the same, 1 / ``loss_mask.sum()``, whatever its row's length (DAPO, Yu et al.,
    2025). ``"sequence"``: every row that has sampled ids weighs the same, and its ids share that by the row's own
    ``loss_mask.sum()`` (GRPO, Shao et al., 2024).

    Example:
        >>> import numpy as np
        >>> mask = np.array([[1, 1, 1, 0], [0, 1, 0, 0]], bool)
        >>> token_weights(mask).tolist()
        [[0.25, 0.25, 0.25, 0.0], [0.0, 0.25, 0.0, 0.0]]
        >>> token_weights(mask, "sequence")[1].tolist()
        [0.0, 0.5, 0.0, 0.0]
    """
    if normalise not in _NORMALISERS:
        raise ValueError(f"normalise={normalise!r}; give 'token' or 'sequence'")
    _check_mask(loss_mask)
    ones = jnp.asarray(loss_mask).astype(jnp.float32)
    if normalise == "token":
        return ones / jnp.maximum(jnp.sum(ones), jnp.float32(1))
    per_row = jnp.sum(ones, axis=1, keepdims=True)
    rows = jnp.sum(per_row > 0, dtype=jnp.int32).astype(jnp.float32)
    return ones / jnp.maximum(per_row, jnp.float32(1)) / jnp.maximum(rows, jnp.float32(1))


def reinforce_loss(
    logprobs: Float[Array, "B L"],
    advantages: Float[Array, "B"] | Float[Array, "B L"],
    *,
    loss_mask: Bool[Array, "B L"],
    normalise: Normalise = "token",
    weights: Float[Array, "B L"] | None = None,
) -> Loss:
    """REINFORCE: the mean of ``-advantage * log p`` over the sampled ids.

    With advantages of 1 it is the loss of imitation, the mean negative log-likelihood.

    Source: Williams, "Simple statistical gradient-following algorithms" (1992).

    Args:
        logprobs: float32[B, L], log p(tokens[t] | tokens before) under the policy that learns, in nats.
        advantages: float32[B], one for a conversation, or [B, L], one for an id; no gradient flows into them.
        loss_mask: bool[B, L], the ids that were sampled. Elsewhere ``logprobs`` and ``advantages`` may be anything,
            also infinite or NaN: the gradient there is exactly 0.
        normalise: see `token_weights`.
        weights: float32[B, L] to use in place of ``token_weights(loss_mask, normalise)``, as for a part of a batch,
            whose ids are to weigh what they weigh in the whole.

    Raises:
        ValueError: for shapes that do not go together, a mask that is not bool, and, where it is not traced, a mask in
            which nothing is True.

    Example:
        >>> import numpy as np
        >>> mask = np.array([[False, True, True]])
        >>> float(reinforce_loss(np.float32([[0, -1, -2]]), np.float32([2]), loss_mask=mask).loss)
        3.0
    """
    mask, advantages, weights = _prepared(logprobs, advantages, loss_mask, normalise, weights)
    sampled = jnp.where(mask, logprobs, jnp.float32(0))
    zero = jnp.float32(0)
    return Loss(-jnp.sum(weights * advantages * sampled), zero, jnp.float32(1), zero)


def grpo_loss(
    logprobs: Float[Array, "B L"],
    advantages: Float[Array, "B"] | Float[Array, "B L"],
    *,
    loss_mask: Bool[Array, "B L"],
    sampled_logprobs: Float[Array, "B L"] | None = None,
    reference_logprobs: Float[Array, "B L"] | None = None,
    clip: tuple[float, float] | None = (0.2, 0.2),
    kl_coefficient: float = 0.0,
    kl_estimator: Estimator = "k3",
    normalise: Normalise = "token",
    weights: Float[Array, "B L"] | None = None,
) -> Loss:
    """The clipped policy-gradient loss of GRPO: the ratio to what was sampled, times the advantage, and a KL term.

    For each sampled id, with ``r = exp(logprobs - sampled_logprobs)``: ``-min(r * A, clip(r, 1 - low, 1 + high) * A)``.

    Source: PPO (Schulman et al., 2017) and GRPO (Shao et al., 2024, arXiv:2402.03300); two bounds as in DAPO (2025).

    Args:
        logprobs: float32[B, L], log p(tokens[t] | tokens before) under the policy that learns, in nats.
        advantages: as `group_advantages` gives them, [B] or [B, L]; no gradient flows into them.
        loss_mask: bool[B, L], the ids that were sampled; the gradient elsewhere is exactly 0.
        sampled_logprobs: float32[B, L], those of the view `sampled_logprobs`: what the ids had when they were sampled.
            None: the policy has not changed since, so the ratio is 1, and its gradient that of REINFORCE.
        reference_logprobs: float32[B, L], those of a reference policy; needed where ``kl_coefficient`` is not 0.
        clip: how far below and above 1 the ratio may pull; None: it is not clipped.
        kl_coefficient: what the KL to the reference is multiplied with.
        kl_estimator: ``"k2"`` or ``"k3"``; the gradient of ``"k1"`` as a loss is 0 on the average, so it is refused.
        normalise: see `token_weights`.
        weights: see `reinforce_loss`.

    Raises:
        ValueError: as `reinforce_loss`, and for a KL term without a reference.

    Example:
        >>> import numpy as np
        >>> mask, old = np.array([[False, True]]), np.float32([[0, -2]])
        >>> loss = grpo_loss(np.float32([[0, -1]]), np.float32([1]), loss_mask=mask, sampled_logprobs=old)
        >>> float(loss.loss), float(loss.clipped)
        (-1.2000000476837158, 1.0)
    """
    mask, advantages, weights = _prepared(logprobs, advantages, loss_mask, normalise, weights)
    zero = jnp.float32(0)
    now = jnp.where(mask, logprobs, zero)
    before = now if sampled_logprobs is None else _like(logprobs, sampled_logprobs, "sampled_logprobs")
    ratio = jnp.exp(now - jax.lax.stop_gradient(jnp.where(mask, before, zero)))
    gain = ratio * advantages
    held = jnp.zeros_like(mask)
    if clip is not None:
        low, high = clip
        if not (0 <= low <= 1 and high >= 0):
            raise ValueError(f"clip={clip}; give how far below (0 to 1) and above (0 or more) 1 the ratio may pull")
        limited = jnp.clip(ratio, jnp.float32(1 - low), jnp.float32(1 + high)) * advantages
        held = limited < gain
        gain = jnp.minimum(gain, limited)
    loss, kl = -jnp.sum(weights * gain), zero
    if reference_logprobs is not None:
        if kl_estimator not in ESTIMATORS or kl_estimator == "k1":
            raise ValueError(f"kl_estimator={kl_estimator!r}; give 'k2' or 'k3', whose gradients pull")
        other = jax.lax.stop_gradient(_like(logprobs, reference_logprobs, "reference_logprobs"))
        kl = jnp.sum(weights * kl_per_token(now, other, mask, kl_estimator))
        loss = loss + jnp.float32(kl_coefficient) * kl
    elif kl_coefficient:
        raise ValueError(f"kl_coefficient={kl_coefficient} needs reference_logprobs")
    return Loss(loss, kl, jnp.sum(weights * ratio), jnp.sum(jnp.where(held, weights, zero)))


def _prepared(
    logprobs: Array, advantages: Array, loss_mask: Array, normalise: Normalise, weights: Array | None
) -> tuple[Array, Array, Array]:
    """Mask, advantages per id with 0 where nothing was sampled, weights."""
    if jnp.ndim(logprobs) != 2 or jnp.shape(logprobs) != jnp.shape(loss_mask):
        raise ValueError(
            f"logprobs {jnp.shape(logprobs)}, loss_mask {jnp.shape(loss_mask)}; both are [B, L], conversations by ids"
        )
    if jnp.shape(advantages) not in (jnp.shape(logprobs), jnp.shape(logprobs)[:1]):
        raise ValueError(f"advantages {jnp.shape(advantages)}; give [B] or [B, L], as logprobs {jnp.shape(logprobs)}")
    if weights is None:
        weights = token_weights(loss_mask, normalise)
    else:
        _check_mask(loss_mask)
        weights = jnp.where(loss_mask, _like(logprobs, weights, "weights"), jnp.float32(0))
    advantages = advantages if jnp.ndim(advantages) == 2 else jnp.asarray(advantages)[:, None]
    advantages = jnp.where(loss_mask, jnp.asarray(advantages, jnp.float32), jnp.float32(0))
    return jnp.asarray(loss_mask), jax.lax.stop_gradient(advantages), weights


def _check_mask(loss_mask: Array) -> None:
    if jnp.ndim(loss_mask) != 2 or jnp.result_type(loss_mask) != jnp.bool_:
        raise ValueError(f"loss_mask is {jnp.result_type(loss_mask)}{list(jnp.shape(loss_mask))}; give a bool[B, L]")
    if not isinstance(loss_mask, Tracer) and not np.asarray(loss_mask).any():
        raise ValueError("loss_mask is False everywhere: there is nothing to learn from; were these states stepped?")


def _like(logprobs: Array, other: Array, name: str) -> Array:
    if jnp.shape(other) != jnp.shape(logprobs):
        raise ValueError(f"{name} {jnp.shape(other)} is not shaped as logprobs {jnp.shape(logprobs)}")
    return jnp.asarray(other)
