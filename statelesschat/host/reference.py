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


def references_of(texts: Sequence[str]) -> Reference:
    """Texts as numpy arrays with a leading axis of rows, as wide as the longest of them needs.

    Raises:
        TypeError: not all of them are texts.
        ValueError: one that is no Unicode, such as half of a pair of surrogates.

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
    encoded = [text.encode() for text in texts]
    lengths = np.asarray([len(each) for each in encoded], np.int32)
    width = -(-max(1, *lengths.tolist(), 1) // _STEP) * _STEP
    padded = b"".join(each.ljust(width, b"\0") for each in encoded)
    words = np.frombuffer(padded, "<i4").astype(np.int32).reshape(len(encoded), width // 4)
    return Reference(words, lengths)  # type: ignore[arg-type]


def reference_at(words: Int[np.ndarray, "W"], length: int) -> str:
    """The text of one row, on the host."""
    return words.astype("<i4").tobytes()[: int(length)].decode()
