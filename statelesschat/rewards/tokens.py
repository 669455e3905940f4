"""Token ids to bytes on the device."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, UInt8

from statelesschat.rewards.text import Text

_ROWS = 4


@partial(jax.tree_util.register_dataclass, data_fields=["flat", "offsets"], meta_fields=["usual"])
@dataclasses.dataclass(frozen=True)
class TokenBytes:
    """The bytes of every id of a tokenizer; ``statelesschat.token_bytes(tokenizer)`` makes one.

    It is a pytree: what is jitted with it as an argument, or with an `Env` that holds it, does not have it baked in.
    """

    flat: UInt8[Array, "K"]  # uint8, the bytes of all ids, one after the other
    offsets: Int[Array, "V+1"]  # int32, the bytes of id i are flat[offsets[i]:offsets[i + 1]]
    usual: int  # static: bytes that nearly every id stays within; what texts are given room for, per id

    def size_of(self, width: int) -> int:
        """Bytes of room for ``width`` ids: ample for text, not for ids of nothing but long runs of white space."""
        return width * self.usual + 64


def decode_bytes(
    vocabulary: TokenBytes, tokens: Int[Array, "R"], length: Int[Array, ""], *, size: int | None = None
) -> Text:
    """The text of ``length`` ids, control tokens written out, as `Codec.decode_responses` writes them.

    Args:
        vocabulary: the bytes of each id; ids outside it have none.
        tokens: int32[R].
        length: int32, how many of them are valid.
        size: S, bytes of room; by default ``vocabulary.size_of(R)``. A longer text has its true ``end``, and
            ``fits`` is False.

    Example:
        >>> import numpy as np, statelesschat as sc
        >>> text = sc.rewards.decode_bytes(
        ...     sc.token_bytes(sc.load_tokenizer(None)), np.array([72, 105, 0], np.int32), np.int32(2))
        >>> bytes(np.asarray(text.bytes))[: int(text.end)]
        b'Hi'
    """
    width = tokens.shape[0]
    size = vocabulary.size_of(width) if size is None else size
    last = vocabulary.offsets.shape[0] - 2
    known = (jnp.arange(width) < length) & (tokens >= 0) & (tokens <= last)
    ids = jnp.clip(tokens, 0, last)
    flat, offsets = jnp.asarray(vocabulary.flat), jnp.asarray(vocabulary.offsets)
    first = offsets[ids]
    counts = jnp.where(known, offsets[ids + 1] - first, 0)
    ends = _running_sums(counts)
    begins = ends - counts
    # Byte s of the text is flat[s + shift of its id]. Differences of shifts, put where the ids begin, add up to them;
    # those of ids without bytes fall on the place of the next id and cancel out.
    steps = jnp.diff(first - begins, prepend=jnp.zeros(1, jnp.int32))
    # Place s is held in row s % 4, column s // 4: most of the adding up is then of whole rows.
    columns = -(-size // _ROWS)
    places = jnp.where(begins < size, begins % _ROWS * columns + begins // _ROWS, _ROWS * columns)
    steps = jnp.zeros(_ROWS * columns, jnp.int32).at[places].add(steps, mode="drop").reshape(_ROWS, columns)
    rows = _sums_down(steps)
    before = _running_sums(rows[-1]) - rows[-1]
    source = rows + before[None] + jnp.arange(_ROWS * columns, dtype=jnp.int32).reshape(columns, _ROWS).T
    source = lax.optimization_barrier(jnp.clip(source, 0, flat.shape[0] - 1))
    found = flat.at[source].get(mode="promise_in_bounds").T.ravel()[:size]
    return Text(found, jnp.int32(0), jnp.sum(counts, dtype=jnp.int32))


def _running_sums(values: Int[Array, "N"]) -> Int[Array, "N"]:
    """As cumsum, which XLA makes one by one on a CPU; four by four it takes less than half the time."""
    columns = -(-values.shape[0] // _ROWS)
    padded = jnp.concatenate([values, jnp.zeros(_ROWS * columns - values.shape[0], jnp.int32)])
    rows = _sums_down(padded.reshape(columns, _ROWS).T)
    before = jnp.cumsum(rows[-1], dtype=jnp.int32) - rows[-1]
    return (lax.optimization_barrier(rows) + before[None]).T.ravel()[: values.shape[0]]


def _sums_down(rows: Int[Array, "4 N"]) -> Int[Array, "4 N"]:
    sums = [rows[0]]
    for row in range(1, _ROWS):
        sums.append(sums[-1] + rows[row])
    return jnp.stack(sums)
