"""Tables without a tokenizer, a small codec, and a whole epoch drawn as a user would."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import statelesschat as sc
from statelesschat.core.types import Column
from statelesschat.data import Cursor, RowInfo, next_batch


@functools.cache
def codec(**changes: Any) -> sc.Codec:
    tokenizer = sc.load_tokenizer(None)
    options = {"capacity": 256, "max_messages": 8, "max_message_len": 48, "max_prompt_len": 64, "max_turns": 4}
    return sc.Codec(tokenizer, sc.make_config(tokenizer, **(options | changes)))


def table(rows: int) -> sc.ChatData:
    """Rows whose arrays say which row they are."""
    ids = np.arange(rows, dtype=np.int32)
    messages = np.full((rows, 1, len(Column)), -1, np.int32)
    messages[:, 0] = [1, 0, 0, 2, 0, 0, 7, 8, -1, 0]
    tokens = np.stack([ids, ids + 1, ids * 0], axis=1)
    limits = np.full(rows, 3, np.int32)
    data = sc.ChatData(tokens, ids * 0 + 2, messages, limits, RowInfo(ids, ids, ids * 0, {"twice": 2 * ids}))
    return jax.tree.map(jnp.asarray, data)


# One program for each set of static arguments in all tests; the optimiser's work would take longer than theirs.
quickly = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
drawn = quickly(next_batch, static_argnames=("batch", "repeats", "shuffle", "drop_last", "count"))
reset = quickly(jax.vmap(sc.reset, (None, 0)))


def slots(data: sc.ChatData, valid: Any) -> list[tuple[int, int, int]]:
    """Row, group and repeat of the valid rows of a batch, in order."""
    info = data.info
    return [
        (int(r), int(g), int(k))
        for r, g, k, v in zip(*map(np.asarray, (info.row_id, info.group_id, info.repeat_id, valid)))
        if v
    ]


def epochs(cursor: Cursor, data: sc.ChatData, batch: int, **options: Any) -> Iterator[list[tuple[int, int, int]]]:
    """The slots of one epoch after the other."""
    found: list[tuple[int, int, int]] = []
    while not bool(cursor.exhausted):
        cursor, rows, valid = drawn(cursor, data, batch, **options)
        found += slots(rows, valid)
        if bool(cursor.epoch_ended):
            yield found
            found = []
