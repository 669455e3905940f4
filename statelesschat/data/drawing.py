"""The next batch of a table as index arithmetic: pure, without an iterator, a queue or a stored order."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from statelesschat.core.types import ChatData
from statelesschat.data.cursor import Cursor
from statelesschat.data.permutation import permuted
from statelesschat.data.rows import RowInfo, Table, check_table, take_rows, with_row_info

_LARGEST = np.int32(2**31 - 1)


def next_batch(
    cursor: Cursor,
    table: Table,
    batch: int,
    repeats: int = 1,
    *,
    where: Bool[Array, "B"] | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
    index: int | Int[Array, ""] = 0,
    count: int = 1,
) -> tuple[Cursor, ChatData, Bool[Array, "B"]]:
    """The next rows of a table, each as often as ``repeats`` says, one repeat behind the other: q0 q0 q1 q1.

    An epoch hands out every row of the shard in an order of its own; repeats of a row may lie in two batches. A batch
    never holds rows of two epochs: the last one of an epoch has fewer, and the rows behind them are not valid. Rows
    that are not valid have ``turn_limit`` 0, so `reset` leaves them done, ids of -1, and a prompt that means nothing.
    After the last epoch nothing is valid and the cursor stays as it is.

    Pure, and made for the inside of jit, scan and shard_map: one trace serves every call, nothing crosses to the host,
    and the cost is that of gathering the rows. Hand the table to a jitted function as an argument; one that is
    closed over is compiled in.

    Args:
        cursor: of `make_cursor`, or of the call before.
        table: ChatData with a leading axis N, as `from_iterable` makes. Info that is no `RowInfo` becomes its ``task``.
        batch: B, static.
        repeats: how many conversations begin with each row, static.
        where: bool[B]: only these rows draw, in order, the others are not valid; for loops that `restart` the rows
            that are done. None: all.
        shuffle: another order in each epoch, from the cursor's key; False: that of the table.
        drop_last: skip the rows at the end of an epoch that do not fill a batch.
        index: which of ``count`` shards this is. It owns each place p of the epoch's order with p % count == index.
            An int, or a traced int32 as of `jax.lax.axis_index`; then each shard has a cursor of its own, as shards
            of unequal size end their epochs at different calls.
        count: shards, static. One without rows ends an epoch at each call.

    Returns:
        The cursor to go on with; ChatData with a leading axis B, whose info is a `RowInfo`; and bool[B], the rows that
        are valid. Group ids are ``epoch * N + place``, counted from 0 again after 2**31.

    Raises:
        ValueError: at trace, for arguments that cannot be.

    Example:
        >>> import statelesschat as sc
        >>> from statelesschat.data import from_iterable, make_cursor, next_batch
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> table = from_iterable(["2+3?", "1+1?", "Hello"], sc.Codec(tokenizer, config))
        >>> cursor, data, valid = next_batch(make_cursor(0), table, 4, 2, shuffle=False)
        >>> data.info.row_id.tolist(), data.info.repeat_id.tolist()
        ([0, 0, 1, 1], [0, 1, 0, 1])
        >>> cursor, data, valid = next_batch(cursor, table, 4, 2, shuffle=False)
        >>> data.info.row_id.tolist(), valid.tolist(), bool(cursor.epoch_ended)
        ([2, 2, -1, -1], [True, True, False, False], True)
    """
    size = check_table(table)
    _check(size, batch, repeats, index, count)
    if where is not None and (jnp.shape(where) != (batch,) or jnp.result_type(where) != jnp.bool_):
        raise ValueError(
            f"where is {jnp.result_type(where)}{list(jnp.shape(where))}; give a bool for each of the {batch} rows"
        )
    if drop_last and where is not None:
        raise ValueError("drop_last with where: rows that draw one by one fill no batch; give one of the two")
    if drop_last and size // count * repeats < batch:
        raise ValueError(
            f"batch={batch} with drop_last is more than an epoch: {size} rows in {count} shards, {repeats} times each; "
            "lower batch, or leave drop_last out"
        )
    static = isinstance(index, int | np.integer)
    plan = _Plan(batch, repeats, bool(shuffle), bool(drop_last), count, int(index) if static else None)
    return _draw(cursor, table, where, None if static else index, plan)


@dataclasses.dataclass(frozen=True)
class _Plan:
    batch: int
    repeats: int
    shuffle: bool
    drop_last: bool
    count: int
    index: int | None  # None: it is traced


@partial(jax.jit, static_argnames="plan")
def _draw(
    cursor: Cursor, table: Table, where: Any, index: Any, plan: _Plan
) -> tuple[Cursor, ChatData, Bool[Array, "B"]]:
    """`next_batch` after its checks; compiled on its own, so that a call outside jit is one program too."""
    table = with_row_info(table)
    size = table.tokens.shape[0]
    index = jnp.int32(plan.index) if plan.index is not None else jnp.asarray(index, jnp.int32)
    slots = ((size - 1 - index) // plan.count + 1) * plan.repeats
    left = jnp.where(cursor.exhausted, 0, jnp.maximum(slots - cursor.position, 0))
    rank = jnp.arange(plan.batch, dtype=jnp.int32)
    wanted = jnp.int32(plan.batch)
    if where is not None:
        rank = jnp.cumsum(where, dtype=jnp.int32) - 1
        wanted = rank[-1] + 1
    drawn = jnp.minimum(wanted, left)
    if plan.drop_last:
        drawn = jnp.where(drawn < plan.batch, 0, drawn)
    valid = rank < drawn
    if where is not None:
        valid = valid & where

    ended = ~cursor.exhausted & (left - drawn < (plan.batch if plan.drop_last else 1))
    moved = Cursor(
        key=cursor.key,
        epoch=cursor.epoch + ended.astype(jnp.int32),
        position=jnp.where(ended, 0, cursor.position + drawn),
        num_epochs=cursor.num_epochs,
        epoch_ended=jnp.where(cursor.exhausted, cursor.epoch_ended, ended),
    )

    # The slots drawn are one run, so the order is computed once for each of its few places, not for each repeat.
    first, offset = cursor.position // plan.repeats, cursor.position % plan.repeats
    step = (offset + jnp.clip(rank, 0, jnp.maximum(drawn - 1, 0))) // plan.repeats
    repeat = (offset + rank) % plan.repeats
    most = (plan.batch + plan.repeats - 2) // plan.repeats + 1
    places = first + jnp.arange(most, dtype=jnp.int32)
    places = jnp.minimum(places, (size - 1 - index) // plan.count) * plan.count + index
    places = jnp.clip(places, 0, size - 1)
    order = permuted(places, size, cursor.key, cursor.epoch) if plan.shuffle else places
    data = take_rows(table, order[step])
    info: RowInfo = data.info
    group = (cursor.epoch * size + places[step]) & _LARGEST
    return (
        moved,
        dataclasses.replace(
            data,
            turn_limit=jnp.where(valid, data.turn_limit, 0),
            info=info._replace(
                row_id=jnp.where(valid, info.row_id, -1),
                group_id=jnp.where(valid, group, -1),
                repeat_id=jnp.where(valid, repeat, -1),
            ),
        ),
        valid,
    )


def _check(size: int, batch: int, repeats: int, index: Any, count: int) -> None:
    for name, value in (("batch", batch), ("repeats", repeats), ("count", count)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value < 2**31:
            raise ValueError(f"{name}={value!r}; give a whole number from 1 on")
    if isinstance(index, int | np.integer) and not 0 <= index < count:
        raise ValueError(f"index={index}; give 0 to {count - 1}, as count={count}")
    if isinstance(index, float | str | bool):
        raise ValueError(f"index={index!r}; give a whole number below count={count}")
    if size * repeats >= 2**31:
        raise ValueError(
            f"{size} rows, {repeats} times each, are 2**31 or more to an epoch; lower repeats or split the table"
        )
