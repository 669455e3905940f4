"""What tasks have in common whose rewards come from a grader on the host."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from statelesschat.data.rows import Table
from statelesschat.envs.combinators import with_stop
from statelesschat.envs.env import Env, chat_env
from statelesschat.host.grader import with_grader
from statelesschat.host.grading import GraderPool
from statelesschat.host.reference import Reference, references_of
from statelesschat.rewards.tokens import TokenBytes
from statelesschat.tasks.task import Task, assemble, codec_for
from statelesschat.text.codec import Codec

_pools: dict[Callable[..., Any], GraderPool] = {}
_making = threading.Lock()


def pool_of(grader: Callable[..., Any]) -> GraderPool:
    """The pool that all environments of a task share unless they are given another; it ends with the program."""
    with _making:
        if grader not in _pools:
            _pools[grader] = GraderPool(grader)
        return _pools[grader]


def graded(grader: Callable[..., Any], codec: Codec, vocabulary: TokenBytes) -> Env:
    """One answer, graded by the shared pool: a task's ``env``."""
    return _env(pool_of(grader), None, codec, vocabulary)


def made(
    task: Task,
    tokenizer: Any,
    source: Any,
    rows: Mapping[str, Any] | None,
    pool: GraderPool | None,
    deadline_s: float | None,
    grader: Callable[..., Any],
    options: Mapping[str, Any],
) -> tuple[Env, Table]:
    """Environment and table of a task that is graded."""
    chosen = functools.partial(_env, pool_of(grader) if pool is None else pool, deadline_s)
    return assemble(dataclasses.replace(task, env=chosen), codec_for(task, tokenizer, options), source, rows or {})


def references(width: int, rows: list[dict[str, Any]]) -> Reference:
    """The rows' references: a task's ``collate``. ``width``: bytes of room for each."""
    return references_of([row["reference"] for row in rows], width)


def bounded(text: str, width: int, what: str) -> str:
    """The text; ValueError where it has more bytes than there is room for."""
    size = len(text.encode(errors="replace"))
    if size > width:
        raise ValueError(f"{what} has {size} bytes; there is room for {width}: leave the row out")
    return text


def _env(pool: GraderPool, deadline_s: float | None, codec: Codec, vocabulary: TokenBytes) -> Env:
    return with_stop(with_grader(chat_env(codec.config), codec, pool, deadline_s=deadline_s)[0])
