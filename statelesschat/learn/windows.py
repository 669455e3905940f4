"""A batch of conversations as what a gradient needs, read in windows no wider than they have to be."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from statelesschat.core.types import ChatState
from statelesschat.core.views import loss_mask, prompt, sampled_logprobs, turn_ids


class Batch(NamedTuple):
    """Conversations to learn from; all but ``length`` and ``informative`` are [B, L] or windows [B, W] of it."""

    tokens: Int[Array, "B L"]  # int32
    loss_mask: Bool[Array, "B L"]
    sampled_logprobs: Float[Array, "B L"]  # float32, nats
    advantages: Float[Array, "B L"]  # float32, of the turn an id belongs to
    weights: Float[Array, "B L"]  # float32, see `token_weights`; they sum to 1 over the whole batch
    length: Int[Array, "B"]  # int32
    informative: Bool[Array, "B"]  # whether the row's gradient is not known to be 0


def read_batch(chat: ChatState, advantages: Float[Array, "B T"], rows: Bool[Array, "B"]) -> Batch:
    """The batch of conversations, of which those in ``rows`` are learned from; without weights yet (all 0)."""
    mask = jax.vmap(loss_mask)(chat) & rows[:, None]
    turns = jnp.clip(jax.vmap(turn_ids)(chat), 0, advantages.shape[1] - 1)
    advantages = jnp.where(mask, jnp.take_along_axis(advantages, turns, axis=1), jnp.float32(0))
    stored = jnp.zeros(mask.shape, jnp.float32) if chat.logprobs is None else jax.vmap(sampled_logprobs)(chat)
    return Batch(
        tokens=jax.vmap(prompt)(chat)[0],
        loss_mask=mask,
        sampled_logprobs=stored,
        advantages=advantages,
        weights=jnp.zeros_like(advantages),
        length=chat.length,
        informative=jnp.any(advantages != 0, axis=1),
    )


def merge_alike(batch: Batch, repeats: int) -> Batch:
    """Of rows of a group that hold the same ids and advantages the first is read, with the weight of them all.

    The gradient is the same, and what is short and often right is read once: with a policy that has become sure of its
    answers most of a group is one row. ``repeats`` is how many rows stand side by side in a group.
    """
    groups = jax.tree.map(lambda leaf: leaf.reshape(-1, repeats, *leaf.shape[1:]), batch)
    compared = groups.tokens, groups.loss_mask, groups.advantages

    def alike(other: tuple[Array, ...]) -> Bool[Array, "G R"]:
        same = [jnp.all(one == row[:, None], axis=2) for one, row in zip(compared, other)]
        return same[0] & same[1] & same[2]

    same = jax.lax.map(alike, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), compared))  # [R, G, R]
    same = jnp.moveaxis(same, 1, 0)
    first = jnp.argmax(same, axis=1) == jnp.arange(repeats)[None, :]
    shared = jnp.sum(groups.weights, axis=2) / jnp.maximum(
        jnp.sum(groups.loss_mask, axis=2, dtype=jnp.int32), 1
    ).astype(jnp.float32)  # the weight of each of a row's ids
    total = jnp.where(first, jnp.sum(jnp.where(same, shared[:, None, :], jnp.float32(0)), axis=2), jnp.float32(0))
    weights = jnp.where(groups.loss_mask, total[:, :, None], jnp.float32(0))
    return batch._replace(
        weights=weights.reshape(batch.weights.shape), informative=batch.informative & first.reshape(-1)
    )


def bucket_widths(capacity: int, smallest: int = 32) -> tuple[int, ...]:
    """Widths of windows for a capacity: ``smallest`` and what is half as much again, or twice, of it, up to capacity.

    Example:
        >>> bucket_widths(200)
        (32, 48, 64, 96, 128, 192, 200)
    """
    widths, size = [], smallest
    while size < capacity:
        widths += [width for width in (size, size + size // 2) if width < capacity]
        size *= 2
    return (*widths, capacity)


def sum_over_windows(
    function: Callable[[Batch], Any], batch: Batch, size: int, buckets: Sequence[int]
) -> tuple[Any, Int[Array, ""]]:
    """The sum of what ``function`` gives for parts of ``size`` rows, each read as wide as its longest row's bucket.

    Rows are ordered by length, so that short ones are read together, and parts in which no row is informative are not
    read at all. The function is traced once for each bucket.

    Args:
        function: of a `Batch` of ``size`` rows and some bucket's width to a pytree of float arrays.
        batch: [B, L]; ``size`` divides B.
        size: rows at once.
        buckets: rising widths, the last one L.

    Returns:
        The sum, and how many ids were read, windows' padding included, int32.
    """
    parts = batch.length.shape[0] // size
    need = jnp.where(batch.informative, batch.length, 0)
    order = jnp.argsort(need)
    ordered = jax.tree.map(lambda leaf: leaf[order].reshape(parts, size, *leaf.shape[1:]), batch)
    needs = need[order].reshape(parts, size)[:, -1]
    shapes = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], _window(ordered, buckets[0])))

    def nothing(part: Batch) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    branches = [nothing, *(lambda part, width=width: function(_window(part, width)) for width in buckets)]
    widths = jnp.asarray((0, *buckets), jnp.int32)

    def add(total: tuple[Any, Array], part: tuple[Batch, Array]) -> tuple[tuple[Any, Array], None]:
        rows, need = part
        branch = jnp.searchsorted(widths, need).astype(jnp.int32)
        found = jax.lax.switch(branch, branches, rows)
        return (jax.tree.map(jnp.add, total[0], found), total[1] + widths[branch] * size), None

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), jnp.int32(0)
    return jax.lax.scan(add, zero, (ordered, needs))[0]


def _window(batch: Batch, width: int) -> Batch:
    return jax.tree.map(lambda leaf: leaf[..., :width] if leaf.ndim == batch.tokens.ndim else leaf, batch)
