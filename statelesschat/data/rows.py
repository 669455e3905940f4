"""Rows of a table: what a drawn row knows of itself, and rows taken from a table by their indices."""

import dataclasses
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from statelesschat.core.types import ChatData, Message

Table: TypeAlias = ChatData
"""A `ChatData` all of whose arrays have a leading axis ``N``: the first prompts of a whole task, on the device."""


class RowInfo(NamedTuple):
    """``ChatData.info`` of rows that come from `next_batch`, a source or a `Stream`. Shapes are of one row."""

    row_id: Int[Array, ""]  # int32, the row's index in its source, rows left out counted; -1 where nothing was drawn
    group_id: Int[Array, ""]  # int32, the same for all repeats of a row in an epoch and for nothing else; -1 as above
    repeat_id: Int[Array, ""]  # int32, which of the repeats this is, from 0; -1 as above
    task: Any = None  # pytree of numeric arrays that rewards need, as reference answers
    script: Message | None = None  # the user's later turns, leading axis S, in order; a length of 0: there is none


def with_row_info(table: Table) -> Table:
    """The table with a `RowInfo`: one that has another info keeps it as ``task``, and counts its rows from 0."""
    if isinstance(table.info, RowInfo):
        return table
    ids = jnp.arange(check_table(table), dtype=jnp.int32)
    return dataclasses.replace(table, info=RowInfo(ids, ids, jnp.zeros_like(ids), table.info))


def take_rows(table: Table, indices: Any) -> ChatData:
    """Rows of a table by their indices, with the structure that `next_batch` gives.

    Args:
        table: N rows.
        indices: int32 of any shape, each in [0, N); others are clipped. An int gives one row without a leading axis,
            as `init` takes it for its example.

    Example:
        >>> import statelesschat as sc
        >>> from statelesschat.data import from_iterable, take_rows
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> table = from_iterable(["2+3?", "1+1?", "Hello"], sc.Codec(tokenizer, config))
        >>> take_rows(table, [2, 0]).info.row_id.tolist()
        [2, 0]
    """
    table = with_row_info(table)
    at = jnp.asarray(indices, jnp.int32)
    return jax.tree.map(lambda leaf: jnp.take(jnp.asarray(leaf), at, axis=0, mode="clip"), table)


def check_table(table: Table) -> int:
    """The number of rows N; ValueError for what is no table."""
    shape = jnp.shape(table.tokens)
    if len(shape) != 2:
        raise ValueError(f"the table's tokens have shape {shape}; give ChatData with a leading axis of rows: [N, D]")
    if shape[0] == 0:
        raise ValueError("the table has no rows; give at least one")
    for path, leaf in jax.tree.leaves_with_path(table):
        if jnp.shape(leaf)[:1] != shape[:1]:
            raise ValueError(
                f"the table's {jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}; its leading axis must be that "
                f"of tokens, {shape[0]} rows"
            )
    return shape[0]
