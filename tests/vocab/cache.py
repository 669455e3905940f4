"""Backends are built once and kept as JSON: building one takes seconds.

The files lie in the user's cache folder, keyed on the version of the package that holds the vocabulary and on the
text of these modules.
"""

import copy
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast


def folder(module: str) -> Path:
    """Where a package lies, found without importing it; skips the test where it is not installed."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"could not find {module!r}: {module.replace('_', '-')} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def wrap(
    name: str, package: str, build: Callable[[], Tokenizer], chat_template: str | None, **tokens: str
) -> PreTrainedTokenizerFast:
    """The tokenizer of a backend that ``build`` makes. All calls for a name share it: do not add tokens to it."""
    tokenizer = copy.copy(_load(name, package, build, tuple(tokens.items())))
    tokenizer.chat_template = chat_template
    return tokenizer


@functools.cache
def _load(
    name: str, package: str, build: Callable[[], Tokenizer], tokens: tuple[tuple[str, str], ...]
) -> PreTrainedTokenizerFast:
    file = _file(name, package)
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as unfinished:
            unfinished.write(build().to_str())
        os.replace(unfinished.name, file)
    return PreTrainedTokenizerFast(tokenizer_file=str(file), clean_up_tokenization_spaces=False, **dict(tokens))


def _file(name: str, package: str) -> Path:
    recipe = hashlib.sha256()
    for module in sorted(Path(__file__).parent.glob("*.py")):
        recipe.update(module.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = importlib.metadata.version(package)
    return root / "statelesschat-tests" / f"{name}-{version}-{recipe.hexdigest()[:16]}.json"
