"""Tables from what people have: prompts, histories and rows in memory, in JSONL files and in Hugging Face datasets."""

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from statelesschat.data.encoding import assembled, encode_rows, long_rows, widest
from statelesschat.data.opening import open_dataset
from statelesschat.data.options import Collate, MapRow, RowOptions, row_options
from statelesschat.data.progress import encoding_progress
from statelesschat.data.reading import read_rows
from statelesschat.data.rows import Table
from statelesschat.text.codec import Codec
from statelesschat.text.jsonfile import parse, read_text

_CHUNK = 1024  # rows that are encoded, and handed to `collate`, at a time


def from_iterable(
    rows: Iterable[Any],
    codec: Codec,
    *,
    columns: Mapping[str, str] | None = None,
    map: MapRow | None = None,
    info: Iterable[str] = (),
    collate: Collate | None = None,
    on_long: str = "error",
    limit: int | None = None,
    width: int | None = None,
    progress: bool = True,
) -> Table:
    """A table of prompts, encoded and on the device.

    A row is a string (the prompt), a list of messages (a history), or a dict. A dict's prompt stands under ``prompt``
    or ``query`` (a string or a history), ``messages`` (a history), ``prompt_ids`` (ids, taken as they are) or
    ``turns`` (the user's texts: the first is the prompt, the others become ``RowInfo.script``, each answer's reply in
    order). A ``turn_limit`` (int) may stand beside it; other columns are left alone.

    Args:
        rows: anything that can be gone through once.
        codec: encodes prompts; its config's limits hold.
        columns: our name to the source's column, as ``{"prompt": "question"}``, where a dict has other names.
        map: a function of a row, called first, that returns a dict.
        info: names of columns that hold numbers, or lists of numbers of one length: ``RowInfo.task`` becomes a dict of
            int32, float32 or bool arrays under these names.
        collate: a function of a list of up to 1024 dicts, after ``map`` and ``columns``, which returns ``RowInfo.task``
            for them: a pytree of numpy arrays whose leading axis is the rows. For all that ``info`` cannot say.
        on_long: what becomes of rows whose prompt or later turns are more than the config has room for. ``"error"``
            raises an error that names them, ``"drop"`` leaves them out with a warning that does. Nothing is ever cut.
        limit: take this many rows at most.
        width: D of the table, by default that of the longest prompt; a longer one is too long.
        progress: draw a bar on a terminal while thousands of rows are encoded.

    Returns:
        ChatData with a leading axis N, whose info is a `RowInfo`. A row that has fewer later turns than the others has
        blocks of length 0 in their place. Where no row is given as turns, ``script`` is None.

    Raises:
        ValueError, TypeError: the source is empty, or a row is wrong; the message names the row and says what to do.

    Example:
        >>> import statelesschat as sc
        >>> from statelesschat.data import from_iterable
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> rows = [{"question": "2+3?", "answer": 5}, {"question": "1+1?", "answer": 2}]
        >>> table = from_iterable(rows, sc.Codec(tokenizer, config), columns={"prompt": "question"}, info=["answer"])
        >>> table.info.task["answer"].tolist(), table.length.tolist()
        ([5, 2], [23, 23])
    """
    options = row_options(codec, columns, map, info, collate, on_long, width)
    return _table(_checked(rows), options, limit, progress)


def from_jsonl(
    path: str | os.PathLike[str],
    codec: Codec,
    *,
    columns: Mapping[str, str] | None = None,
    map: MapRow | None = None,
    info: Iterable[str] = (),
    collate: Collate | None = None,
    on_long: str = "error",
    limit: int | None = None,
    width: int | None = None,
    progress: bool = True,
) -> Table:
    """A table of a file with one JSON value on each line, or one array of them; the options of `from_iterable`.

    Raises:
        ValueError: the file cannot be read, or a row is wrong; the message names the file and the line.
    """
    name = os.fspath(path)
    found = parse(read_text(name), name)
    options = row_options(
        codec, columns, map, info, collate, on_long, width, lambda row: f"{name}:{found[row].line}: row {row}"
    )
    if not found:
        raise ValueError(f"{name}: the source is empty; give one JSON value on each line")
    return _table((item.value for item in found), options, limit, progress, len(found))


def from_dataset(
    dataset: Any,
    codec: Codec,
    *,
    split: str | None = None,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    map: MapRow | None = None,
    info: Iterable[str] = (),
    collate: Collate | None = None,
    on_long: str = "error",
    limit: int | None = None,
    width: int | None = None,
    progress: bool = True,
) -> Table:
    """A table of a Hugging Face dataset; the options of `from_iterable`.

    Args:
        dataset: a ``datasets.Dataset`` or ``DatasetDict``; a folder that ``save_to_disk`` wrote, or one with data
            files; a file (``.jsonl``, ``.json``, ``.csv``, ``.parquet``, ``.arrow``); or a name on the hub, taken from
            the local cache where the hub cannot be reached.
        codec: encodes prompts.
        split: which split of a ``DatasetDict``, a folder or a dataset on the hub.
        name: the configuration of a dataset on the hub that has several, as ``"main"`` of ``openai/gsm8k``.
        columns: this and what follows as in `from_iterable`.
        map: see there.
        info: see there.
        collate: see there.
        on_long: see there.
        limit: see there.
        width: see there.
        progress: see there.

    Raises:
        ValueError, TypeError: no such split (those there are are named), a dataset that is streamed (see `stream`), an
            empty source, a wrong row.
        OSError: a name that can be had neither from the hub nor from the cache. Raised within seconds.
    """
    options = row_options(codec, columns, map, info, collate, on_long, width)
    found = open_dataset(dataset, split, name)
    return _table(found, options, limit, progress, len(found))


def _checked(rows: Any) -> Iterable[Any]:
    if isinstance(rows, str | bytes | Mapping | set | frozenset):
        raise TypeError(f"rows come as a list or another iterable of rows, not as one {type(rows).__name__}")
    if not isinstance(rows, Iterable):
        raise TypeError(f"rows come as a list or another iterable of rows, not as a {type(rows).__name__}")
    return rows


def _table(
    rows: Iterable[Any], options: RowOptions, limit: int | None, progress: bool, total: int | None = None
) -> Table:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit={limit!r}; give a whole number from 1 on, or None for all rows")
    if total is None and hasattr(rows, "__len__"):
        total = len(rows)  # type: ignore[arg-type]
    if total is not None and limit is not None:
        total = min(total, limit)
    blocks, long, done = [], {}, 0
    with encoding_progress(total, progress) as tell:
        for chunk in _chunks(read_rows(enumerate(itertools.islice(rows, limit)), options)):
            block, unfit = encode_rows(chunk, options)
            blocks += [block] if block is not None else []
            long |= unfit
            done += len(chunk)
            tell(done)
    if not done:
        raise ValueError("the source is empty; give at least one row")
    if long and (not options.drop_long or not blocks):
        rest = "" if blocks else ", which leaves none"
        how = "raise the limit or shorten them" + ("" if options.drop_long else ", or pass on_long='drop'")
        raise ValueError(f"{long_rows(long, options)} of {done}{rest}; {how}")
    if long:
        warnings.warn(f"{long_rows(long, options)} of {done}; left out", UserWarning, stacklevel=3)
    return jax.tree.map(jnp.asarray, assembled(blocks, options, widest(blocks, options.width)))


def _chunks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(rows, _CHUNK)):
        yield chunk
