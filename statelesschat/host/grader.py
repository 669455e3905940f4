"""Environments whose rewards come from a grader on the host: a pool of processes, each row with a deadline."""

import concurrent.futures
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from statelesschat.core.types import ChatState
from statelesschat.envs.env import Env
from statelesschat.host.desk import Answer, Verdict
from statelesschat.host.environment import with_host
from statelesschat.host.grading import Grade, GraderPool
from statelesschat.host.reference import Reference, reference_at
from statelesschat.host.session import Outcome
from statelesschat.text.codec import Codec

_KEPT = 2**16  # answers whose grades nobody has collected yet


def with_grader(
    env: Env,
    codec: Codec,
    grader: Callable[[str, str], Any] | GraderPool,
    *,
    workers: int | None = None,
    timeout_s: float = 10.0,
    deadline_s: float | None = None,
    response_len: int | None = None,
) -> tuple[Env, GraderPool]:
    r"""Reward each finished answer by what a Python function says of it, in processes of their own.

    The grader is given the answer alone, as text and without what the template writes around it, and the row's
    reference text. One that hangs, crashes, raises or returns no finite number ends its own row with status HOST_ERROR
    and reward 0; the batch goes on, and `host.faults` says why. An answer longer than ``response_len`` is judged by
    nobody: its status is FORMAT_ERROR.

    Args:
        env: what it wraps. The data's ``info.task`` is a `Reference`, which `references_of` makes.
        codec: of the environment's config.
        grader: what `GraderPool` takes, such as `math_reward` or a function of yours at the top level of a module; or
            a pool, which several environments may share, and which has workers and time-out of its own.
        workers: processes, as `GraderPool` has it.
        timeout_s: seconds for each answer, from when a worker begins with it.
        deadline_s: seconds until a step goes on without the rows that are not graded: these are PENDING, and are
            collected by a later step. None: a step takes as long as its slowest row.
        response_len: ids of an answer that are sent, by default ``max_response_len``.

    Returns:
        The environment, and the pool: close it, or use it as a context manager.

    Example:
        >>> import jax, statelesschat as sc
        >>> from operator import eq
        >>> from statelesschat.host import references_of, with_grader
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=4, max_message_len=32, max_turns=1)
        >>> codec = sc.Codec(tokenizer, config)
        >>> env, pool = with_grader(sc.chat_env(config), codec, eq, workers=1)
        >>> info = sc.data.RowInfo(*3 * [jax.numpy.arange(2)], task=references_of(["4", "6"]))
        >>> with pool:
        ...     states = sc.begin(env, codec.encode(["2+2?", "2*3?"], info=info), jax.random.key(0))
        ...     states = jax.jit(jax.vmap(env.step))(states, codec.encode_actions(["4", "5"]))
        >>> states.reward.tolist()
        [1.0, 0.0]
    """
    shared = isinstance(grader, GraderPool)
    pool = grader if isinstance(grader, GraderPool) else GraderPool(grader, workers=workers, timeout_s=timeout_s)
    try:
        serve = _Grading(pool, deadline_s)
        return with_host(env, codec, serve, messages=0, response_len=response_len, tell=told_reference), pool
    except BaseException:
        if not shared:
            pool.close()
        raise


def told_reference(state: ChatState) -> Int[Array, "1+W"]:
    """The row's reference, its length first. int32."""
    task = getattr(state.info, "task", state.info)
    if not isinstance(task, Reference):
        raise TypeError(
            f"info.task is a {type(task).__name__}; a grader compares answers with a Reference: make the data with "
            "task=references_of(texts)"
        )
    return jnp.concatenate([jnp.asarray(task.length, jnp.int32)[None], jnp.asarray(task.words, jnp.int32)])


class _Grading:
    """Serves answers by a pool of graders."""

    def __init__(self, pool: GraderPool, deadline_s: float | None) -> None:
        number = isinstance(deadline_s, int | float) and not isinstance(deadline_s, bool)
        if deadline_s is not None and not (number and 0 <= deadline_s < float("inf")):
            raise ValueError(f"deadline_s={deadline_s!r}; give a number of seconds, or None")
        self._pool, self._deadline_s = pool, deadline_s
        self._slots = itertools.count()
        self._lock = threading.Lock()
        self._late: dict[tuple[str, str], Future[Grade]] = {}  # that were not ready when they were asked for

    def __call__(self, answers: list[Answer]) -> list[Verdict]:
        futures = [self._future(answer) for answer in answers]
        concurrent.futures.wait(futures, self._deadline_s)
        return [self._verdict(answer, future) for answer, future in zip(answers, futures)]

    def _future(self, answer: Answer) -> Future[Grade]:
        future: Future[Grade] = Future()
        if not answer.whole:
            future.set_result(Grade(np.nan))
            return future
        reference = _reference(answer)
        with self._lock:
            late = self._late.pop((answer.text, reference), None)
        if late is not None:
            return late
        try:
            return self._pool.submit(answer.text, reference)
        except Exception as error:
            future.set_exception(error)
            return future

    def _verdict(self, answer: Answer, future: Future[Grade]) -> Verdict:
        # The slot only tells the faults of rows apart: there is nothing that a row holds on to.
        slot = answer.ticket.slot if answer.ticket.slot >= 0 else next(self._slots)
        generation = answer.ticket.generation
        if not future.done():
            with self._lock:
                self._late[answer.text, _reference(answer)] = future
                while len(self._late) > _KEPT:
                    self._late.pop(next(iter(self._late))).cancel()
            return Verdict(slot, generation, pending=True)
        try:
            grade = future.result()
        except concurrent.futures.CancelledError:
            return Verdict(slot, generation, pending=True)  # the same answer comes again, and is graded then
        except Exception as error:
            return Verdict(slot, generation, outcome=Outcome.FAULT, detail=str(error), error=error, fault=True)
        lost = grade.outcome is not Outcome.OK
        return Verdict(slot, generation, outcome=grade.outcome, detail=grade.detail, reward=grade.reward, fault=lost)


def _reference(answer: Answer) -> str:
    return reference_at(answer.told[1:], int(answer.told[0]))
