"""Batches of a source whose length is not known: rows read as they are needed, repeated and cut into batches."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from statelesschat.core.types import ChatData
from statelesschat.data.encoding import Block, Widths, assembled, encode_rows, long_rows
from statelesschat.data.options import RowOptions
from statelesschat.data.reading import read_rows
from statelesschat.data.rows import RowInfo
from statelesschat.data.task import check_alike, specs


class Place(NamedTuple):
    """Where a stream stands: all that what follows depends on besides the source and the arguments."""

    row: int = 0  # index in the source of the row that comes next
    repeat: int = 0  # its repeats that were handed out
    kept: int = 0  # rows of this shard before it that were not too long
    script: bool | None = None  # whether rows are given as turns; None: no row was read
    info: Mapping[str, Any] | None = None  # for each column of `info` its dtype and shape


class Plan(NamedTuple):
    """The arguments of `stream` that say how rows become batches."""

    batch: int
    repeats: int
    drop_last: bool
    shard: int
    shards: int


class Batch(NamedTuple):
    """One batch, numpy or on the device; or, at the end, what was left out behind the last."""

    data: ChatData | None
    valid: Any  # bool[B]
    place: Place  # behind it
    long: dict[int, str]  # rows left out before its last one, by their index, and what was too long


class Batches:
    """An iterator over the batches of a source's rows, from a place on.

    Args:
        rows: the source from ``place.row`` on.
        options: how rows are read.
        plan: how they become batches.
        place: where to begin.
        closed: whether nobody wants more; asked at each row of the source.
    """

    def __init__(
        self, rows: Iterable[Any], options: RowOptions, plan: Plan, place: Place, closed: Callable[[], bool]
    ) -> None:
        self._options, self._plan, self._place, self._closed = options, plan, place, closed
        self._read = 0
        self._at_beginning = place == Place()
        shard = (item for item in enumerate(self._counted(rows), place.row) if item[0] % plan.shards == plan.shard)
        self._rows = read_rows(shard, options)
        self._kept, self._repeat = place.kept, place.repeat
        self._script, self._info = place.script, place.info
        self._first_task: Any = None
        self._pool: ChatData | None = None  # rows with repeats yet to be handed out
        self._long: dict[int, str] = {}
        self._left_out = 0

    def __iter__(self) -> Iterator[Batch]:
        """Batches until the source ends; ValueError if it is empty or leaves nothing."""
        plan = self._plan
        some = False
        while True:
            self._fill(-(-(self._repeat + plan.batch) // plan.repeats))
            ready = _rows_of(self._pool) * plan.repeats - self._repeat if self._pool is not None else 0
            if ready < (plan.batch if plan.drop_last else 1):
                break
            some = True
            yield self._cut(min(ready, plan.batch))
        if not self._closed():
            self._check_end(some, max(ready, 0))
        if self._long:
            yield Batch(None, None, self._place, self._long)

    def _cut(self, count: int) -> Batch:
        """The next slots as a batch, filled up with rows that are not valid."""
        pool, plan = self._pool, self._plan
        assert pool is not None
        slots = self._repeat + np.minimum(np.arange(plan.batch), count - 1)
        valid = np.arange(plan.batch) < count
        data: ChatData = jax.tree.map(lambda leaf: leaf[slots // plan.repeats], pool)
        info: RowInfo = data.info
        ids = (info.row_id, info.group_id, slots % plan.repeats)
        row, group, repeat = (np.where(valid, x, -1).astype(np.int32) for x in ids)
        limit = np.where(valid, data.turn_limit, 0).astype(np.int32)
        data = ChatData(data.tokens, data.length, data.table, limit, info._replace(  # type: ignore[arg-type]
            row_id=row, group_id=group, repeat_id=repeat))  # fmt: skip

        used, self._repeat = divmod(self._repeat + count, plan.repeats)
        self._place = Place(
            row=int(pool.info.row_id[used]) if self._repeat else int(pool.info.row_id[used - 1]) + 1,
            repeat=self._repeat,
            kept=self._kept - (_rows_of(pool) - used),
            script=self._script,
            info=self._info,
        )
        self._pool = jax.tree.map(lambda leaf: leaf[used:], pool)
        long, self._long = self._long, {}
        return Batch(data, valid, self._place, long)

    def _fill(self, needed: int) -> None:
        """Read until so many rows are held, or the source ends; no row is read before its batch is due."""
        while (missing := needed - (_rows_of(self._pool) if self._pool is not None else 0)) > 0:
            rows = list(itertools.islice(self._rows, missing))
            if not rows:
                return
            block, long = encode_rows(rows, self._options)
            if long and not self._options.drop_long:
                raise ValueError(
                    f"{long_rows(long, self._options)}; raise the limit or shorten them, or pass on_long='drop'"
                )
            self._long |= long
            self._left_out += len(long)
            if block is not None:
                self._add(block)

    def _add(self, block: Block) -> None:
        options, plan = self._options, self._plan
        if self._script is None:
            self._script = block.script is not None
        elif block.script is not None and not self._script:
            raise ValueError(
                f"{options.place(int(block.ids[0]))} or one soon after it is given as turns, and no earlier row is; "
                "give all rows of a stream as turns"
            )
        first = plan.shard + plan.shards * self._kept
        more = assembled([block], options, stream_widths(options, self._script), first, plan.shards, self._info)
        if options.info and self._info is None:
            self._info = specs(more.info.task)
        if options.collate is not None:
            self._first_task = more.info.task if self._first_task is None else self._first_task
            check_alike(self._first_task, more.info.task)
        self._kept += len(block.ids)
        held = self._pool
        self._pool = more if held is None else jax.tree.map(lambda a, b: np.concatenate([a, b]), held, more)

    def _counted(self, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            if self._closed():
                return
            self._read += 1
            yield row

    def _check_end(self, some: bool, ready: int) -> None:
        """Raise ValueError where a source gave nothing at all, which nobody wants."""
        if some or not self._at_beginning:
            return
        if not self._read:
            raise ValueError("the source is empty; give at least one row, and a new iterator where one was used up")
        if self._left_out and not self._kept:
            raise ValueError(
                f"{long_rows(self._long, self._options)}, which leaves none; raise the limit or shorten them"
            )
        if self._plan.drop_last and ready:
            raise ValueError(
                f"batch={self._plan.batch} with drop_last is more than the whole source, {ready} rows with their "
                "repeats; lower batch, or leave drop_last out"
            )


def stream_widths(options: RowOptions, script: bool) -> Widths:
    """Widths that hold every row the config has room for, so that all batches have one trace."""
    config = options.codec.config
    turns, turn = (max(1, config.max_turns - 1), config.max_message_len) if script else (0, 0)
    return Widths(options.width or config.max_prompt_len, config.max_messages, turns, turn)


def _rows_of(data: ChatData) -> int:
    return len(data.length)  # type: ignore[arg-type]
