"""Which ids a policy samples from: temperature, top-k, top-p and min-p as one map from logits to log-probabilities."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from statelesschat.core.config import Static

_OUT = -jnp.inf


@dataclasses.dataclass(frozen=True, eq=False)
class Sampling(Static):
    """How ids are sampled from logits. What is left at its default costs nothing.

    The order is that of Hugging Face's generation: temperature, top-k, top-p, min-p, each on what the ones before left.
    """

    temperature: float = 1.0  # logits are divided by it; 0: the likeliest id always (the first of equals)
    top_k: int = 0  # only the k likeliest ids, and those equal to the k-th; 0: all
    top_p: float = 1.0  # only the likeliest ids that together reach this probability, at least one
    min_p: float = 0.0  # only ids at least this many times as likely as the likeliest

    def __post_init__(self) -> None:
        """Refuse what is no distribution."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature={self.temperature}; give a finite number from 0 (greedy) on")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise ValueError(f"top_k={self.top_k!r}; give a whole number of ids, or 0 for all")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}; give a probability above 0, at most 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p}; give a share from 0 to 1")

    @property
    def greedy(self) -> bool:
        """Whether nothing is random."""
        return self.temperature == 0


GREEDY = Sampling(temperature=0.0)


def sampling_logprobs(logits: Float[Array, "... V"], sampling: Sampling) -> Float[Array, "... V"]:
    """Log-probabilities in nats under the sampling distribution, -inf for ids that are left out. float32[..., V].

    Example:
        >>> import numpy as np
        >>> logits = np.log(np.float32([0.5, 0.3, 0.2]))
        >>> np.exp(sampling_logprobs(logits, Sampling(top_p=0.6))).round(3).tolist()
        [0.625, 0.375, 0.0]
    """
    logits = jnp.asarray(logits, jnp.float32)
    if sampling.greedy:
        best = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1], dtype=bool)
        return jnp.where(best, jnp.float32(0), jnp.float32(_OUT))
    if sampling.temperature != 1:
        logits = logits / jnp.float32(sampling.temperature)
    if 0 < sampling.top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, sampling.top_k)[0][..., -1:]
        logits = jnp.where(logits < least, jnp.float32(_OUT), logits)
    if sampling.top_p < 1:
        order = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
        mass = jax.nn.softmax(order, axis=-1)
        before = jnp.cumsum(mass, axis=-1) - mass
        kept = jnp.sum(before < jnp.float32(sampling.top_p), axis=-1, keepdims=True)
        least = jnp.take_along_axis(order, jnp.maximum(kept - 1, 0), axis=-1)
        logits = jnp.where(logits < least, jnp.float32(_OUT), logits)
    if sampling.min_p > 0:
        least = jnp.max(logits, axis=-1, keepdims=True) + jnp.float32(math.log(sampling.min_p))
        logits = jnp.where(logits < least, jnp.float32(_OUT), logits)
    return jax.nn.log_softmax(logits, axis=-1)


def sample_ids(key: PRNGKeyArray, logprobs: Float[Array, "... V"]) -> Int[Array, "..."]:
    """One id for each distribution, int32, by inversion of its cumulative distribution.

    One random number is drawn for each id that is sampled, where `jax.random.categorical` draws V of them, which with a
    small model is a good part of a step. The resolution is the same, that of a float32 between 0 and 1. An id of
    log-probability -inf is never sampled.
    """
    size = logprobs.shape[-1]
    side = math.isqrt(size - 1) + 1  # cumulative sums of about sqrt(V), over groups and within the one that is hit
    blank = [(0, 0)] * (logprobs.ndim - 1)
    groups = jnp.pad(jnp.exp(logprobs), [*blank, (0, side * side - size)]).reshape(*logprobs.shape[:-1], side, side)
    masses = jnp.sum(groups, axis=-1)
    up_to = jnp.cumsum(masses, axis=-1)
    at = jax.random.uniform(key, logprobs.shape[:-1]) * up_to[..., -1]  # below the sum: a float32 below 1 times it
    group = jnp.argmax(up_to > at[..., None], axis=-1)[..., None]
    before = jnp.take_along_axis(up_to - masses, group, axis=-1)[..., 0]
    within = jnp.cumsum(jnp.take_along_axis(groups, group[..., None], axis=-2)[..., 0, :], axis=-1)
    # The two sums are rounded differently: what is left may come out a little below 0 or at the group's own sum.
    rest = jnp.minimum(at - before, jnp.nextafter(within[..., -1], jnp.float32(0)))
    found = jnp.argmax(within > jnp.maximum(rest, jnp.float32(0))[..., None], axis=-1)
    return (group[..., 0] * side + found).astype(jnp.int32)


def logprobs_of(logprobs: Float[Array, "... V"], ids: Int[Array, "..."]) -> Float[Array, "..."]:
    """The entry of each id."""
    return jnp.take_along_axis(logprobs, ids[..., None], axis=-1)[..., 0]
