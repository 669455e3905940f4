"""The bytes of every id of a tokenizer, so that text can be read on the device."""

import json
import re
from typing import Any

import jax.numpy as jnp
import numpy as np

from statelesschat.rewards.tokens import TokenBytes
from statelesschat.text.pieces import PieceCodec
from statelesschat.text.tokenizer import byte_symbols

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SAMPLES = (
    "What is 12 - 47? The answer is -35.\n\n\tfor i in range(10):  print(i)\n",
    "naïve café — “quotes”, 你好, 😀 e\u0301 £5 €7 −3 1/2",
    " leading,  double and trailing spaces ",
    "<answer>\\boxed{\\frac{1}{2}}</answer>\r\n#### 70,000",
)


def token_bytes(tokenizer: Any) -> TokenBytes:
    """The bytes of each id of a tokenizer, for `rewards.decode_bytes` and the rewards of tasks.

    Bytes of ids put together are the text that `Codec.decode_responses` gives: control tokens are written out, and what
    stands for a space is one. Works for vocabularies of bytes and of characters with byte fallback (BPE, Unigram); it
    is tried on texts and on every id before it is given.

    Args:
        tokenizer: a fast tokenizer of transformers (`load_tokenizer`).

    Returns:
        TokenBytes, on the device.

    Raises:
        ValueError: the tokenizer joins ids to text by more than putting their bytes together, as WordPiece does.

    Example:
        >>> import statelesschat as sc
        >>> vocabulary = token_bytes(sc.load_tokenizer(None))
        >>> vocabulary.flat[vocabulary.offsets[257] : vocabulary.offsets[258]].tobytes()
        b'<|im_start|>'
    """
    backend = tokenizer.backend_tokenizer
    added = {int(i): str(token.content).encode() for i, token in tokenizer.added_tokens_decoder.items()}
    read = _reader(json.loads(backend.to_str())["decoder"])
    pieces = []
    for i in range(len(tokenizer)):
        token = backend.id_to_token(i)
        pieces.append(added[i] if i in added else b"" if token is None else read(token))
    _check(tokenizer, pieces, added)
    lengths = np.fromiter(map(len, pieces), np.int32, len(pieces))
    flat = np.frombuffer(b"".join(pieces) or b"\0", np.uint8)
    usual = int(np.clip(np.percentile(lengths[lengths > 0], 98, method="higher"), 1, 8)) if lengths.any() else 1
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return TokenBytes(jnp.asarray(flat), jnp.asarray(offsets), usual)


def _reader(decoder: Any) -> Any:
    """What a decoder makes of one token of the vocabulary."""
    kinds = [part["type"] for part in _parts(decoder)]
    if "ByteLevel" in kinds:
        symbols = byte_symbols()
        return lambda token: b"".join(
            bytes([symbols[c]]) if c in symbols else c.encode() for c in token
        )  # a character that stands for no byte stays as it is
    fallback = "ByteFallback" in kinds

    def read(token: str) -> bytes:
        byte = _BYTE.fullmatch(token) if fallback else None
        return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()

    return read


def _parts(decoder: Any) -> list[Any]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _check(tokenizer: Any, pieces: list[bytes], added: dict[int, bytes]) -> None:
    """Raise ValueError where the bytes of ids, put together, are not the text that they decode to."""
    codec = PieceCodec(tokenizer, "unprefixed")
    sequences = codec.encode(list(_SAMPLES))
    alone = [[i] for i in range(len(pieces)) if i not in added]
    for ids, text in zip(sequences + alone, codec.decode(sequences + alone), strict=True):
        joined = b"".join(pieces[i] for i in ids)
        if joined != text.encode(errors="replace") and joined.decode(errors="replace") != text:
            raise ValueError(
                f"ids {ids[:8]} decode to {text[:40]!r}, but their tokens are {joined[:40]!r}: this tokenizer does not "
                "put text together from the bytes of its ids, so it cannot be read on the device; score on the host"
            )
