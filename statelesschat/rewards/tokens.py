"""Token ids to bytes on the device."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
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
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    begins = ends - counts
    # Byte s of the text is flat[s + shift of its id]. Differences of shifts, put where the ids begin, add up to them;
    # those of ids without bytes fall on the place of the next id and cancel out.
    steps = jnp.diff(first - begins, prepend=jnp.zeros(1, jnp.int32))
    # Place s is held in row s % 4, column s // 4, so that most of the adding up is of whole rows: XLA's cumsum goes one
    # by one on a CPU, and took most of the time.
    columns = -(-size // _ROWS)
    places = jnp.where(begins < size, begins % _ROWS * columns + begins // _ROWS, _ROWS * columns)
    steps = jnp.zeros(_ROWS * columns, jnp.int32).at[places].add(steps, mode="drop").reshape(_ROWS, columns)
    columnwise = jnp.sum(steps, axis=0, dtype=jnp.int32)
    source = jnp.cumsum(columnwise, dtype=jnp.int32) - columnwise + jnp.arange(columns, dtype=jnp.int32) * _ROWS
    found = []
    for row in range(_ROWS):
        source = source + steps[row]
        found.append(flat.at[jnp.clip(source + row, 0, flat.shape[0] - 1)].get(mode="promise_in_bounds"))
    return Text(jnp.stack(found, axis=1).ravel()[:size], jnp.int32(0), jnp.sum(counts, dtype=jnp.int32))
