"""How the rows of a source are read: the options that all sources share, checked once."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from statelesschat.text.codec import Codec
from statelesschat.text.inputs import PROMPT_KEYS

PROMPTS = (*PROMPT_KEYS, "turns")
MapRow = Callable[[Any], Mapping[str, Any]]
Collate = Callable[[list[dict[str, Any]]], Any]


class RowError(ValueError):
    """Raised by a ``map`` or ``collate`` whose message says by itself what is wrong with a row, and what to do.

    ``row`` is the row's index in the source, for `collate`; of what ``map`` raises the row is known.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        self.row = row
        super().__init__(message)


@dataclasses.dataclass(frozen=True)
class RowOptions:
    """What the arguments of `from_iterable` say about rows."""

    codec: Codec
    columns: Mapping[str, str]  # our name: their column
    map: MapRow | None
    info: tuple[str, ...]
    collate: Collate | None
    drop_long: bool
    width: int | None
    place: Callable[[int], str]  # what messages call a row, by its index in the source


def row_options(
    codec: Codec,
    columns: Mapping[str, str] | None,
    map: MapRow | None,
    info: Iterable[str],
    collate: Collate | None,
    on_long: str,
    width: int | None,
    place: Callable[[int], str] = "row {}".format,
) -> RowOptions:
    """The options, after their checks: ValueError or TypeError says which cannot be, and what can."""
    if not isinstance(codec, Codec):
        raise TypeError(f"codec is a {type(codec).__name__}; give Codec(tokenizer, config)")
    names = (info,) if isinstance(info, str) else tuple(info)
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise ValueError(f"info={info!r}; give the names of columns that hold numbers, each once")
    if names and collate is not None:
        raise ValueError("info and collate both make the task's arrays; give one of them")
    for name, value in (("map", map), ("collate", collate)):
        if value is not None and not callable(value):
            raise TypeError(f"{name} is a {type(value).__name__}; give a function")
    if on_long not in ("error", "drop"):
        raise ValueError(f"on_long={on_long!r}; give 'error' or 'drop'")
    limit = codec.config.max_prompt_len
    if width is not None and (isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= limit):
        raise ValueError(f"width={width!r}; give 1 to max_prompt_len={limit}")
    columns = _columns(columns, names, free=collate is not None)
    return RowOptions(codec, columns, map, names, collate, on_long == "drop", width, place)


def _columns(columns: Mapping[str, str] | None, info: tuple[str, ...], free: bool) -> Mapping[str, str]:
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(x, str) for x in (*columns, *columns.values())):
        raise TypeError(f"columns={columns!r}; give a dict of our names to the source's columns")
    known = (*PROMPTS, "turn_limit", *info)
    unknown = [name for name in columns if name not in known]
    if unknown and not free:
        raise ValueError(
            f"columns names {', '.join(unknown)}, which nothing reads; our names, which come first in each pair, are "
            f"{', '.join(known)}"
        )
    prompts = [name for name in columns if name in PROMPTS]
    if len(prompts) > 1:
        raise ValueError(f"columns gives the prompt under {' and '.join(prompts)}; give one of them")
    return dict(columns)
