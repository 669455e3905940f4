"""The tokenizer at the seams: texts cut at control tokens, and the pieces in between encoded apart.

A tokenizer splits its input at its added tokens before anything else, so what stands between two of them is encoded
as if alone, but for two things a piece must get right itself: SentencePiece may write a space before the first piece
of a text only, and added tokens may swallow the white space beside them.
"""

import functools
import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from statelesschat.core.config import Gap
from statelesschat.core.types import Kind
from statelesschat.text.plain import is_text, plain_backend

ENCODINGS = ("plain", "unprefixed")
_PARTS = ("normalizer", "pre_tokenizer", "decoder")
_HARD = (
    "",
    "x",
    "X",
    "4",
    " ",
    "\n",
    "\n\n",
    "\t",
    "  a",
    "a  ",
    "\r\n",
    ".",
    "-",
    "'s",
    "{",
    "}",
    "<",
    ">",
    "_",
    "/",
    "\u4f60",
    "\u0301",
)


class Cut(NamedTuple):
    """A text cut at the control tokens it writes; without any it is all ``trail``."""

    trail: str
    core: str
    lead: str
    core_ids: tuple[int, ...]


class PieceCodec:
    """Encodes and decodes what stands between control tokens.

    Args:
        tokenizer: a fast tokenizer of transformers.
        encoding: ``"plain"``, each piece as the tokenizer encodes a text; or ``"unprefixed"``, without the space it
            writes before a text, but for the piece that begins a conversation.
        trusted: True lets contents hold control tokens.
        sampled: text that answers may hold; control tokens in it are ids in every answer.
    """

    def __init__(self, tokenizer: Any, encoding: str = "plain", trusted: bool = False, sampled: str = "") -> None:
        self.tokenizer = tokenizer
        self.encoding = encoding
        self.trusted = trusted
        self.full = tokenizer.backend_tokenizer
        added = {int(i): token for i, token in tokenizer.added_tokens_decoder.items()}
        self.controls = {i: token for i, token in added.items() if not is_text(token)}
        unmarked = tuple(str(t.content) for t in self.controls.values() if not t.special or t.content in sampled)
        everything = tuple(str(t.content) for t in self.controls.values())
        self.unmarked = unmarked
        self._kept = {False: everything if trusted else (), True: everything if trusted else unmarked}
        self._added = frozenset(added)
        self._inner, self._prefixes, self._strips = _unprefixed(self.full)
        self._backend = functools.cache(self._make_backend)
        self.swallows = any(token.lstrip or token.rstrip for token in self.controls.values())
        self.cut = functools.lru_cache(maxsize=4096)(self._cut)
        self.seam = functools.lru_cache(maxsize=1024)(self._seam)

    def encode(self, texts: Sequence[str], answers: bool = False, first: bool = False) -> list[list[int]]:
        """Ids of pieces, in one batch.

        Args:
            texts: the pieces.
            answers: added tokens that are not special (``<think>``) are ids in an answer, text in other contents.
            first: the pieces stand at the very beginning of their text, behind no control token.
        """
        # The fast call leaves out the offsets and is otherwise the same.
        batch = self._backend(answers, first).encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids if text else [] for encoding, text in zip(batch, texts, strict=True)]

    def offsets(self, text: str, answers: bool = False, first: bool = False) -> list[tuple[int, int]]:
        """Where in the piece each of its ids begins and ends, in characters."""
        return self._backend(answers, first).encode(text, add_special_tokens=False).offsets

    def decode(self, pieces: Sequence[Sequence[int]], first: bool = False) -> list[str]:
        """Texts of pieces, control tokens in them written out."""
        if not (self._prefixes or self._strips):
            return self.full.decode_batch([list(p) for p in pieces], skip_special_tokens=False)
        return [self._text(piece, first) for piece in pieces]

    def _text(self, ids: Sequence[int], first: bool) -> str:
        """The text of a piece, each stretch between added tokens without the space that encoding wrote before it."""
        spaced = self._prefixes and self.encoding == "plain"
        parts = []
        for is_added, run in itertools.groupby(ids, self._added.__contains__):
            tokens = [token for i in run if (token := self.full.id_to_token(i)) is not None]
            text = "".join(tokens) if is_added else self._inner.decoder.decode(tokens)
            begins = spaced or (self._prefixes and first and not parts)
            parts.append(text.removeprefix(" ") if begins and not is_added else text)
        return "".join(parts)

    def _make_backend(self, answers: bool, first: bool) -> Any:
        backend = plain_backend(self.tokenizer, self._kept[answers])
        if self.encoding == "unprefixed" and not first:
            backend.normalizer, backend.pre_tokenizer = self._inner.normalizer, self._inner.pre_tokenizer
        return backend

    def found(self, text: str, plain: Sequence[tuple[int, int]] = ()) -> list[int]:
        """The control tokens in a text, but for those in the stretches that are plain."""
        return [token for token, _, _ in self._controls_in(text, plain)]

    def mixed(
        self, text: str, plain: Sequence[tuple[int, int]], first: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and offsets of a piece in which the template writes control tokens, but not in the plain stretches."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        cursor = 0
        for token, start, end in [*self._controls_in(text, plain), (-1, len(text), len(text))]:
            between = text[cursor:start]
            ids += self.encode([between], first=first and not ids)[0]
            offsets += [(cursor + a, cursor + b) for a, b in self.offsets(between, first=first and not offsets)]
            if token >= 0:
                ids.append(token)
                offsets.append((start, end))
            cursor = end
        return ids, offsets

    def _controls_in(self, text: str, plain: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
        encoding = self.full.encode(text, add_special_tokens=False)
        spots = ((i, a, b) for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True) if i in self.controls)
        return [(i, a, b) for i, a, b in spots if not any(x < b and a < y for x, y in plain)]

    def reference(self, text: str) -> list[int]:
        """Ids of a whole text as transformers gives them, control tokens and all."""
        return self.full.encode(text, add_special_tokens=False).ids

    def gap(self, previous: int, next: int, text: str, opening: bool = False) -> Gap:
        """A text between two contents as a `Gap`; ``opening``: it begins the conversation, with no piece before."""
        cut = self.cut(text)
        if opening:
            head = text[: len(text) - len(cut.lead)] if cut.core else ""
            cut = Cut("", head, cut.lead if cut.core else text, tuple(self.reference(head)) if head else ())
        appendable = bool(cut.core) or opening or previous == Kind.START or next == Kind.GENERATE
        if not appendable:
            seam = self.seam(text)
            appendable = seam > 0
            cut = Cut(text[:seam], "", text[seam:], ()) if appendable else cut
        first = opening and not cut.core
        trail, lead = self.encode([cut.trail])[0], self.encode([cut.lead], first=first)[0]
        ids = tuple(trail), cut.core_ids, tuple(lead)
        return Gap(previous, next, cut.trail, cut.core, cut.lead, *ids, appendable)

    def swallows_left(self, token: int) -> bool:
        """Whether white space before this control token is part of it."""
        return token in self.controls and bool(self.controls[token].lstrip)

    def swallows_right(self, token: int) -> bool:
        """Whether white space after this control token is part of it."""
        return token in self.controls and bool(self.controls[token].rstrip)

    def _seam(self, text: str) -> int:
        """Where the tokenizer cuts a text between two contents whatever they are, 0 for nowhere.

        Tried on contents that are hard to keep apart; places in the middle of the text come first.
        """
        for at in sorted(range(1, len(text)), key=lambda i: abs(2 * i - len(text))):
            pairs = [(a + text[:at], text[at:] + b) for a in _HARD for b in _HARD]
            whole = self.encode([a + b for a, b in pairs])
            lefts, rights = self.encode([a for a, _ in pairs]), self.encode([b for _, b in pairs])
            if all(w == a + b for w, a, b in zip(whole, lefts, rights, strict=True)):
                return at
        return 0

    def _cut(self, text: str) -> Cut:
        encoding = self.full.encode(text, add_special_tokens=False)
        controls = [i for i, token in enumerate(encoding.ids) if token in self.controls]
        if not controls:
            return Cut(text, "", "", ())
        first, last = controls[0], controls[-1]
        start, end = encoding.offsets[first][0], encoding.offsets[last][1]
        return Cut(text[:start], text[start:end], text[end:], tuple(encoding.ids[first : last + 1]))


def _unprefixed(backend: Any) -> tuple[Any, bool, bool]:
    """The parts of a backend that change text, as they are where no text begins.

    With them, whether encoding writes a space at the beginning of a text, and whether decoding takes one away there.
    """
    from tokenizers import Tokenizer, decoders, models

    parts = Tokenizer(models.BPE())
    for name in _PARTS:
        if getattr(backend, name) is not None:
            setattr(parts, name, getattr(backend, name))
    state = json.loads(parts.to_str())
    inner = Tokenizer.from_str(json.dumps(state | {name: _without_prefix(state[name]) for name in _PARTS}))
    if backend.decoder is None:
        return inner, False, False
    inner.decoder = inner.decoder or decoders.Fuse()
    prefixes = any(state[name] != _without_prefix(state[name]) for name in _PARTS[:2])
    strips = backend.decoder.decode(["\u2581x"]) != inner.decoder.decode(["\u2581x"])
    return inner, prefixes, strips


def _without_prefix(part: Any) -> Any:
    """A part's state without the space it writes before a text, or takes away from there; None: nothing is left."""
    match part:
        case {"type": "Sequence"}:
            (key,) = part.keys() - {"type"}
            return part | {key: [kept for kept in map(_without_prefix, part[key]) if kept is not None]}
        case {"type": "Prepend"} | {"type": "Strip", "start": 1, "stop": 0}:
            return None
        case {"type": "Metaspace"}:
            return part | {"prepend_scheme": "never"}
        case {"type": "ByteLevel"}:
            return part | {"add_prefix_space": False}
    return part
