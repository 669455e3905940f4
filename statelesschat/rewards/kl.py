"""How far a policy has moved from a reference, estimated token by token from what was sampled."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Estimator = Literal["k1", "k2", "k3"]
ESTIMATORS = ("k1", "k2", "k3")


def kl_per_token(
    logprobs: Float[Array, "R"],
    reference: Float[Array, "R"],
    mask: Bool[Array, "R"],
    estimator: Estimator = "k3",
) -> Float[Array, "R"]:
    """Estimates of KL(policy || reference) at each sampled id, in nats; 0, with gradient 0, where the mask is False.

    With ``d = reference - logprobs``, the log of the ratio of the two probabilities of the sampled id:

    * ``"k1"``: ``-d``. Unbiased, of either sign. As a *loss* it does not pull: its expected gradient is 0.
    * ``"k2"``: ``d**2 / 2``. Biased by little, never negative; its gradient is that of the KL itself.
    * ``"k3"``: ``exp(d) - 1 - d``. Unbiased, never negative.

    Source: Schulman, "Approximating KL divergence" (2020).

    Args:
        logprobs: float32[R], log p of each id under the policy; may carry a gradient.
        reference: float32[R], log p of each id under the reference.
        mask: bool[R], the loss mask: which ids were sampled. What stands elsewhere may be anything, infinite or NaN.
        estimator: which.

    Example:
        >>> import numpy as np
        >>> kl_per_token(np.float32([-1.0, 0.0]), np.float32([-1.5, 9.0]), np.array([True, False]), "k1").tolist()
        [0.5, 0.0]
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator={estimator!r}; give one of {', '.join(ESTIMATORS)}")
    zero = jnp.float32(0)
    # Masked before anything is computed: a NaN that is masked afterwards still has a NaN for its gradient.
    sampled, other = jnp.where(mask, logprobs, zero), jnp.where(mask, reference, zero)
    ratio = other - sampled
    match estimator:
        case "k1":
            return sampled - other
        case "k2":
            return ratio * ratio * jnp.float32(0.5)
        case _:
            return jnp.expm1(ratio) - ratio


def token_mean(values: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    """The mean over all ids of a batch that the mask holds: the sum divided by ``mask.sum()``, and by nothing else.

    So every sampled id weighs the same, whatever the length of its row. 0 where nothing is masked in.

    Example:
        >>> import numpy as np
        >>> float(token_mean(np.float32([[1, 1, 9], [3, 9, 9]]), np.array([[1, 1, 0], [1, 0, 0]], bool)))
        1.6666666269302368
    """
    if jnp.shape(values) != jnp.shape(mask):
        raise ValueError(f"token_mean: values of shape {jnp.shape(values)}, a mask of shape {jnp.shape(mask)}")
    total = jnp.sum(jnp.where(mask, values, jnp.float32(0)))
    return total / jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1).astype(jnp.float32)
