"""What a task is, and how any of them is made into an environment and a table."""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from statelesschat.core.config import ChatConfig
from statelesschat.data.options import RowError
from statelesschat.data.rows import Table
from statelesschat.data.sources import from_dataset, from_iterable, from_jsonl
from statelesschat.envs.env import Env
from statelesschat.rewards.number import Number, NumberError, numbers_of
from statelesschat.rewards.tokens import TokenBytes
from statelesschat.text.codec import Codec
from statelesschat.text.configure import make_config
from statelesschat.text.tokenizer import load_tokenizer
from statelesschat.text.vocabulary import token_bytes

_ROW_OPTIONS = ("columns", "split", "name", "limit", "on_long", "width", "progress")
PLACE = "row of the source"  # the field under which a row knows its index


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: how its rows are read, what its rewards need of them, and its environment."""

    name: str
    about: str  # one line
    columns: str  # what a row has to hold, one line
    system_prompt: str | None
    limits: Mapping[str, int]  # of `make_config`, where nothing else is asked for
    read: Callable[[Any], Mapping[str, Any]]  # a row as it comes -> a dict with `prompt` and what `collate` reads
    collate: Callable[[list[dict[str, Any]]], Any]  # such dicts -> ``RowInfo.task``, leading axis the rows
    env: Callable[[Codec, TokenBytes], Env]


def codec_for(task: Task, tokenizer: Any, options: Mapping[str, Any]) -> Codec:
    """The codec a task uses: the caller's own, or one with the task's limits and system prompt, and ``options``."""
    if isinstance(tokenizer, Codec):
        if options:
            raise ValueError(
                f"{', '.join(options)}: the codec's config has these already; give a tokenizer, or leave out"
            )
        return tokenizer
    if isinstance(tokenizer, ChatConfig):
        raise TypeError("a config encodes nothing by itself; give Codec(tokenizer, config)")
    loaded = load_tokenizer(tokenizer)
    chosen: dict[str, Any] = {"system_prompt": task.system_prompt, **task.limits} | dict(options)
    return Codec(loaded, make_config(loaded, **chosen))


def assemble(task: Task, codec: Codec, source: Any, options: Mapping[str, Any]) -> tuple[Env, Table]:
    """Environment and table of rows from anywhere: a file's path, a Hugging Face dataset or its name, any iterable."""
    unknown = [name for name in options if name not in _ROW_OPTIONS]
    if unknown:
        raise ValueError(
            f"rows has {', '.join(unknown)}, which a task makes itself; it may hold {', '.join(_ROW_OPTIONS)}"
        )
    columns = dict(options.get("columns") or {})
    numbers = itertools.count()

    def read(raw: Any) -> Mapping[str, Any]:
        number = next(numbers)
        if not isinstance(raw, Mapping):
            raise RowError(f"a row is a dict with {task.columns}, not a {type(raw).__name__}")
        missing = [theirs for theirs in columns.values() if theirs not in raw]
        if missing:
            raise RowError(f"no column {', '.join(map(str, missing))}; there are {', '.join(map(str, raw)) or 'none'}")
        try:
            return {**task.read({**raw, **{ours: raw[theirs] for ours, theirs in columns.items()}}), PLACE: number}
        except (ValueError, TypeError) as error:
            raise RowError(str(error)) from None

    def collate(rows: list[dict[str, Any]]) -> Any:
        try:
            return task.collate(rows)
        except NumberError as error:
            raise RowError(f"the gold answer {error.reason}", rows[error.row][PLACE]) from None

    chosen: dict[str, Any] = {**options, "map": read, "collate": collate, "columns": None}
    return task.env(codec, token_bytes(codec.tokenizer)), _opener(source)(source, codec, **chosen)


def _opener(source: Any) -> Callable[..., Table]:
    if isinstance(source, str | os.PathLike):
        is_lines = os.fspath(source).endswith((".jsonl", ".json", ".ndjson"))
        return from_jsonl if is_lines else from_dataset
    if type(source).__module__.partition(".")[0] == "datasets":
        return from_dataset
    if isinstance(source, Iterable) and not isinstance(source, Mapping):
        return from_iterable
    raise TypeError(f"a source is a path, a dataset or an iterable of rows, not a {type(source).__name__}")


def gold_numbers(rows: list[dict[str, Any]], key: str = "gold") -> Number:
    """The rows' gold answers as numbers; NumberError says which row's is none."""
    return numbers_of([row[key] for row in rows])


def text_at(row: Mapping[str, Any], *names: str) -> str:
    """The first of these columns that holds something, as text; ValueError where none does."""
    for name in names:
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float | type(None)):
            raise TypeError(f"{name} is {str(value)[:40]!r}, a {type(value).__name__}; give a text or a number")
        if value is not None and str(value).strip():
            return str(value)
    listed = ", ".join(map(str, row)) or "none"
    raise ValueError(f"no {' or '.join(names)} in this row; its columns are {listed}")


def on_device(tree: Any) -> Any:
    """The same arrays, on the device."""
    return jax.tree.map(jnp.asarray, tree)
