"""What the members of a group, several answers to one prompt, are worth beside each other."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def group_advantages(
    rewards: Float[Array, "B"],
    group_id: Int[Array, "B"],
    valid: Bool[Array, "B"] | None = None,
    *,
    repeats: int,
    scale: bool = True,
    epsilon: float = 1e-6,
) -> Float[Array, "B"]:
    """Each reward less the mean of its group, over its standard deviation if ``scale``; 0 for a group of one.

    Source: GRPO (Shao et al., 2024, arXiv:2402.03300); with ``scale=False`` as in Dr. GRPO (Liu et al., 2025).

    Args:
        rewards: float32[B].
        group_id: int32[B], as `next_batch` gives it; members need not stand side by side.
        valid: bool[B], rows that count; others get 0 and count in no group.
        repeats: how many answers a prompt is given, as `next_batch` was told; below 2 there is nothing to compare.
        scale: whether to divide by the group's (population) standard deviation.
        epsilon: added to the standard deviation.

    Raises:
        ValueError: ``repeats`` below 2.

    Example:
        >>> import numpy as np
        >>> group_advantages(np.float32([1, 0, 5]), np.int32([7, 7, 8]), repeats=2, scale=False).tolist()
        [0.5, -0.5, 0.0]
    """
    if repeats < 2:
        raise ValueError(
            f"repeats={repeats}: a group method compares several answers to one prompt; deal each row out twice or "
            "more (next_batch(..., repeats=8)), or use a method without groups"
        )
    valid = jnp.ones(rewards.shape, bool) if valid is None else valid
    together = (group_id[:, None] == group_id[None, :]) & valid[:, None] & valid[None, :]
    size = jnp.maximum(jnp.sum(together, axis=1, dtype=jnp.int32), 1).astype(jnp.float32)
    # Counted from the least of the group, so that rewards that are all alike have a mean that is exactly theirs.
    least = jnp.min(jnp.where(together, rewards[None, :], jnp.float32(jnp.inf)), axis=1)
    above = jnp.where(valid, rewards - least, jnp.float32(0))
    mean = jnp.sum(jnp.where(together, above[None, :], jnp.float32(0)), axis=1) / size
    centred = jnp.where(valid & (size > 1), above - mean, jnp.float32(0))
    if not scale:
        return centred
    variance = jnp.sum(jnp.where(together, (centred * centred)[None, :], jnp.float32(0)), axis=1) / size
    return centred / (jnp.sqrt(variance) + jnp.float32(epsilon))
