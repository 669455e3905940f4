"""Texts that travel with a conversation as data, for graders on the host to compare its answers with."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int

_STEP = 64  # bytes: widths are multiples of it, so that programs for a few more rows are as a rule the same


class Reference(NamedTuple):
    """A text that rewards on the host need, in ``info.task``. Shapes are of one row."""

    words: Int[Array, "W"]  # int32, its UTF-8 bytes, four in each, the first in the lowest bits; zeros behind them
    length: Int[Array, ""]  # int32, its bytes


def references_of(texts: Sequence[str], width: int | None = None) -> Reference:
    """Texts as numpy arrays with a leading axis of rows.

    Args:
        texts: one for each row.
        width: bytes of room for each, a multiple of 4; by default what the longest of them needs. Give one where
            chunks of rows have to fit together, as what a source's ``collate`` returns has.

    Raises:
        TypeError: not all of them are texts.
        ValueError: one that is longer, or no Unicode, such as half of a pair of surrogates; it is named.

    Example:
        >>> from statelesschat.host.reference import reference_at, references_of
        >>> references = references_of(["0.5", "π/2"])
        >>> references.words.shape, references.length.tolist()
        ((2, 16), [3, 4])
        >>> reference_at(references.words[1], references.length[1])
        'π/2'
    """
    wrong = next((text for text in texts if not isinstance(text, str)), None)
    if wrong is not None:
        raise TypeError(f"a reference is {str(wrong)[:40]!r}, a {type(wrong).__name__}; give text")
    encoded = [_encoded(row, text) for row, text in enumerate(texts)]
    lengths = np.asarray([len(each) for each in encoded], np.int32)
    longest = int(lengths.max(initial=1))
    if width is None:
        width = -(-longest // _STEP) * _STEP
    elif width < 4 or width % 4:
        raise ValueError(f"width={width}; give a multiple of 4 bytes")
    elif longest > width:
        raise ValueError(f"row {lengths.argmax()}: the reference has {longest} bytes; there is room for {width}")
    padded = b"".join(each.ljust(width, b"\0") for each in encoded)
    words = np.frombuffer(padded, "<i4").astype(np.int32).reshape(len(encoded), width // 4)
    return Reference(words, lengths)  # type: ignore[arg-type]


def _encoded(row: int, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"row {row}: the reference is no Unicode: {error}") from None


def reference_at(words: Int[np.ndarray, "W"], length: int) -> str:
    """The text of one row, on the host."""
    return words.astype("<i4").tobytes()[: int(length)].decode()
