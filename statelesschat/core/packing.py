"""Small pieces the transitions are written with: packed counts, flags, table rows, checks at trace."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from statelesschat.core.config import ChatConfig
from statelesschat.core.types import Action, ChatData, Column, Count, Finish, Flag, Kind, Status

GENERATE = int(Kind.GENERATE)
NONE = int(Kind.NONE)


def sampled_end(table: Int[Array, "M 10"]) -> Int[Array, "M"]:
    """Where the sampled ids of each row end: behind the piece, and behind the stop id if there is one."""
    return table[:, Column.PIECE_END] + (table[:, Column.FINISH] == int(Finish.STOP)).astype(jnp.int32)


def answer_row(
    old: Int[Array, "12"], end: Int[Array, ""], begin: Int[Array, ""], finish: Int[Array, ""]
) -> Int[Array, "10"]:
    """The table row of the answer that opened last."""
    kind, unknown = jnp.int32(int(Kind.ASSISTANT)), jnp.int32(-1)
    opened = old[Count.OPENED]
    return jnp.stack([kind, opened, opened, end, unknown, unknown, old[Count.KIND], jnp.int32(NONE), begin, finish])


def opens_row(old: Int[Array, "12"], acts: Bool[Array, ""]) -> Int[Array, ""]:
    """1 where a write to the open answer adds its row to the table, else 0."""
    return (acts & ~has_flag(old[Count.FLAGS], Flag.LISTED)).astype(jnp.int32)


def row_index(old: Int[Array, "12"], acts: Bool[Array, ""]) -> Int[Array, ""]:
    """Where the open answer has its row, or the first free one."""
    listed = acts & has_flag(old[Count.FLAGS], Flag.LISTED)
    return old[Count.MESSAGES] - listed.astype(jnp.int32)


def write_row(table: Int[Array, "M 10"], row: Int[Array, "10"], index: Int[Array, ""]) -> Int[Array, "M 10"]:
    """The table with one row written."""
    return lax.dynamic_update_slice(table, row[None], (index, jnp.int32(0)))


def overlay_front(buffer: Array, block: Array) -> Array:
    """A buffer with a block written over its beginning."""
    return lax.dynamic_update_slice(buffer, block, (jnp.int32(0),) * buffer.ndim)


def drop_stop(
    config: ChatConfig, tokens: Int[Array, "W"], previous: Int[Array, ""], stop: Int[Array, ""]
) -> tuple[Int[Array, "W"], Int[Array, ""]]:
    """The block without the closing that a sampled stop id has made redundant, and how many ids that was.

    ``previous`` is the kind of answer the block was made to follow, ``stop`` the id it ended with, or -1. Where
    answers end in the marker of who speaks next, a marker of somebody else makes nothing redundant.
    """
    shifted, shift = tokens, jnp.int32(0)
    others = config.template.answer_stops if len(config.template.answer_stops) > 1 else ()
    elsewhere = jnp.zeros(stop.shape, bool)
    for other in others:
        elsewhere = elsewhere | (stop == other)
    for answer, count in config.template.shifts:
        if count > tokens.shape[0]:
            continue
        here = (stop >= 0) & (previous == answer) & (~elsewhere | (stop == tokens[count - 1]))
        shorter = jnp.concatenate([tokens[count:], jnp.zeros(min(count, tokens.shape[0]), jnp.int32)])
        shifted = jnp.where(here, shorter, shifted)
        shift = jnp.where(here, count, shift)
    return shifted, shift


def follows(previous: Int[Array, ""], kind: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether a block made for one neighbour may stand behind another: an answer may turn out to be a call."""
    return (previous == kind) | (_is_answer(previous) & _is_answer(kind))


def _is_answer(kind: Int[Array, ""]) -> Bool[Array, ""]:
    return (kind == int(Kind.ASSISTANT)) | (kind == int(Kind.CALL))


def is_stop(config: ChatConfig, token: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether an id is one of the template's stop ids."""
    hit = jnp.zeros(token.shape, bool)
    for stop in config.template.stop_ids:
        hit = hit | (token == stop)
    return hit


def pack_counts(**counts: Int[Array, ""] | int) -> Int[Array, "12"]:
    """Named counts as the vector that a state carries."""
    return jnp.stack([jnp.asarray(counts[name.name], jnp.int32) for name in Count])


def has_flag(flags: Int[Array, ""], flag: Flag) -> Bool[Array, ""]:
    """Whether a flag is set."""
    return (flags & int(flag)) != 0


def set_flag(flags: Int[Array, ""], flag: Flag, where: Bool[Array, ""]) -> Int[Array, ""]:
    """Flags with one set where a condition holds."""
    return flags | jnp.where(where, int(flag), 0)


def put_flag(flags: Int[Array, ""], flag: Flag, value: Bool[Array, ""]) -> Int[Array, ""]:
    """Flags with one set or cleared."""
    return (flags & ~int(flag)) | jnp.where(value, int(flag), 0)


def first_status(status: Int[Array, ""], *cases: tuple[Bool[Array, ""], Status]) -> Int[Array, ""]:
    """The status of the first case that holds, else the old one."""
    for holds, code in reversed(cases):
        status = jnp.where(holds, int(code), status)
    return status


def select_info(where: Bool[Array, ""], new: Any, old: Any) -> Any:
    """Info of the data where a row begins anew, of the state elsewhere; ValueError where structures differ."""
    if old is None:
        return new
    if jax.tree.structure(new) != jax.tree.structure(old):
        raise ValueError(
            f"info of the data ({jax.tree.structure(new)}) and of the state ({jax.tree.structure(old)}) differ in "
            "structure; give init(config, example_data) a row of the same data"
        )
    for (path, n), o in zip(jax.tree.leaves_with_path(new), jax.tree.leaves(old), strict=True):
        if jnp.shape(n) != jnp.shape(o) or jnp.result_type(n) != jnp.result_type(o):
            raise ValueError(
                f"info{jax.tree_util.keystr(path)}: the data has {jnp.result_type(n)}{list(jnp.shape(n))}, the state "
                f"{jnp.result_type(o)}{list(jnp.shape(o))}; give init(config, example_data) a row of the same data"
            )
    return jax.tree.map(lambda n, o: jnp.where(where, n, o), new, old)


def check_block(name: str, tokens: Array, limit: int, option: str) -> None:
    """Raise ValueError at trace for ids of more than one row or wider than a limit."""
    if getattr(tokens, "dtype", None) != jnp.int32:
        found = getattr(tokens, "dtype", type(tokens).__name__)
        raise TypeError(f"{name}: tokens are {found}; give an int32 array")
    if tokens.ndim != 1:
        raise ValueError(f"{name}: tokens have shape {tokens.shape}; this is for one row, batch it with jax.vmap")
    if tokens.shape[0] == 0:
        raise ValueError(f"{name}: tokens are 0 wide; give room for at least one id and say the length")
    if tokens.shape[0] > limit:
        raise ValueError(f"{name}: {tokens.shape[0]} ids wide, wider than {option}={limit}; raise {option}")


def check_data(config: ChatConfig, data: ChatData) -> None:
    """Raise ValueError at trace for data that the config has no room for."""
    check_block("data", data.tokens, config.max_prompt_len, "max_prompt_len")
    if data.table.shape[0] == 0:
        raise ValueError("data: a table of no rows; give one for each message, at least one")
    if data.table.shape[0] > config.max_messages:
        raise ValueError(
            f"data: a table of {data.table.shape[0]} messages, more than max_messages={config.max_messages}; "
            "raise max_messages"
        )


def check_action(config: ChatConfig, action: Action) -> None:
    """Raise ValueError at trace for an action that does not suit the config."""
    check_block("action", action.tokens, config.max_response_len, "max_response_len")
    if jnp.result_type(action.finished) != jnp.bool_:
        raise TypeError(f"action: finished is {jnp.result_type(action.finished)}; give a bool")
    if (action.logprobs is None) == config.store_logprobs:
        need = "needs logprobs" if config.store_logprobs else "stores no logprobs"
        raise ValueError(f"action: this config {need} (store_logprobs={config.store_logprobs})")
    if action.logprobs is not None and action.logprobs.shape != action.tokens.shape:
        raise ValueError(f"action: logprobs {action.logprobs.shape} are not shaped as tokens {action.tokens.shape}")
