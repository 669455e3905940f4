"""The plain copy of a tokenizer, to which all text is ordinary."""

import functools
import json
import re
import secrets
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

_WORDS = re.compile(r"[\w\s]+")


def plain_backend(tokenizer: "PreTrainedTokenizerFast", keep: Collection[str] = ()) -> "tokenizers.Tokenizer":
    """A copy of the tokenizer's Rust backend to which all text is ordinary, ``<|im_end|>`` and ``<think>`` included.

    Ids of ordinary text are the tokenizer's own. The copy has no added tokens, post-processor, truncation or padding,
    and emits no added token's id, even where that token also stands in the model's vocabulary. Three kinds of added
    token stay, because text needs them and none can be a control token: white space, words or a single character not
    marked special; a single character that is the model's only way to write it; and what the model itself
    writes for unknown text. The copy is for encoding; decode with the tokenizer.

    Args:
        tokenizer: a fast tokenizer; it is not changed, and the two share memory, so a copy costs microseconds (about
            a second if an entry has to be taken out of a large vocabulary).
        keep: contents of added tokens that the copy keeps, with their ids.

    Raises:
        ValueError: ``keep`` names something that is no added token, or ids that cannot be kept.

    Example:
        >>> import statelesschat as sc
        >>> tokenizer = sc.load_tokenizer(None)
        >>> len(plain_backend(tokenizer).encode("<|im_end|>").ids)
        10
        >>> plain_backend(tokenizer, keep=["<|im_end|>"]).encode("<|im_end|>").ids
        [258]
    """
    from tokenizers import AddedToken, Tokenizer

    backend = tokenizer.backend_tokenizer
    added = dict(sorted(backend.get_added_tokens_decoder().items()))
    absent = set(keep) - {token.content for token in added.values()}
    if absent:
        raise ValueError(f"no added tokens of this tokenizer: {sorted(absent)}. Name only tokens it has, or add them")
    kept = {i: token for i, token in added.items() if token.content in keep or is_text(token)}
    hidden = {token.content for i, token in added.items() if i not in kept and _can_emit(backend.model, i)}
    model = _without(backend, frozenset(hidden)) if hidden else backend.model

    plain = Tokenizer(model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if getattr(backend, part) is not None:
            setattr(plain, part, getattr(backend, part))
    behind = []
    for i in (i for i in added if i <= max(kept, default=-1)):
        if i in kept:
            behind.append(kept[i])
        elif model.id_to_token(i) is None:  # Ids are given out in order: those before a kept one must be taken.
            behind.append(AddedToken(_unwritable(), normalized=False))
    plain.add_tokens(behind)  # All at once: each call builds the search for all of them anew.
    moved = [token.content for i, token in kept.items() if plain.token_to_id(token.content) != i]
    if moved:
        raise ValueError(f"the ids of {moved} are out of sequence. Save and load the tokenizer, then try again")
    return plain


def is_text(token: Any) -> bool:
    """Whether an added token is ordinary text: white space, words or a single character, and not marked special."""
    return not token.special and (_WORDS.fullmatch(token.content) is not None or len(token.content) == 1)


def _can_emit(model: Any, token_id: int) -> bool:
    """Whether the model can write the id for some text, unknown text apart."""
    name = model.id_to_token(token_id)
    if name is None:
        return False
    if type(model).__name__ != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
        return True
    if len(name) == 1 and model.unk_token is None and not model.byte_fallback:
        return False  # The model's only way to write this character: without it the model would drop it.
    # Merges that make a token inside a longer word make it from that token's text alone as well.
    return [piece.id for piece in model.tokenize(name)] == [token_id]


@functools.lru_cache(maxsize=2)  # Of a large vocabulary this takes seconds, and compiling asks for it many times.
def _without(backend: Any, contents: frozenset[str]) -> Any:
    """The backend's model with some entries of its vocabulary renamed beyond reach; all ids stay."""
    from tokenizers import Tokenizer

    model = json.loads(backend.to_str())["model"]
    names = {content: _unwritable() for content in contents}
    if isinstance(model["vocab"], list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {names.get(piece, piece): i for piece, i in model["vocab"].items()}
    if "merges" in model:
        merges = (tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"])
        model["merges"] = [(a, b) for a, b in merges if not {a, b, a + b} & names.keys()]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model})).model


def _unwritable() -> str:
    """A name that no text holds."""
    return secrets.token_hex(24)
