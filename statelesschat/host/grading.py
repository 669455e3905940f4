"""Grading on the host: a pool of processes that runs a grader on many answers, each with a deadline."""

import dataclasses
import math
import os
import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from statelesschat.host import endings
from statelesschat.host.grading_process import GraderError as GraderError
from statelesschat.host.grading_process import Worker, WorkerDiedError, order_for
from statelesschat.host.grading_worker import MARK
from statelesschat.host.session import Outcome

_PAUSES_S = (0.0, 0.5, 2.0)  # before each attempt to start a worker: a machine may be short of processes for a moment


@dataclasses.dataclass(frozen=True, slots=True)
class Grade:
    """What one answer is worth.

    Args:
        reward: what the grader returned, finite; 0.0 where it did not.
        outcome: OK; TIMEOUT, its time was over; DEAD, its process crashed; FAULT, the grader raised, or returned what
            is not a finite number.
        detail: what went wrong, for people; empty where nothing did.
        ms: milliseconds it took.
    """

    reward: float
    outcome: Outcome = Outcome.OK
    detail: str = ""
    ms: float = 0.0


class GraderPool:
    """Processes that run a grader, so that one that hangs or crashes costs its own row and no more.

    Workers are started when there are rows for them, load nothing but the grader's module, and are replaced when they
    are killed or crash. A worker ends with the program, however that ends. What a grader prints goes to stderr. A
    grader runs in the main thread of its process. Every method may be called from any thread.

    Args:
        grader: ``(response, reference) -> float``, a function at the top level of a module, or a `functools.partial`
            of one. Where it has an attribute ``prepare``, a worker calls that before its first row, to import what
            takes long. If its module is the main file, workers run that under another name, as `multiprocessing` does:
            what starts the program belongs under ``if __name__ == "__main__":``.
        workers: how many processes; None: one per CPU that this process may use, 8 at most.
        timeout_s: seconds that a row may take, counted from when a worker begins with it; then the worker is killed.
        start_timeout_s: seconds that a worker may take to load the grader.

    Raises:
        TypeError: not a function.
        ValueError: a number out of range, or a function that another process cannot find (a lambda, a local one).
        RuntimeError: in a worker: the grader's module makes a pool when it is imported.

    Example:
        >>> from statelesschat.host.grading import GraderPool
        >>> from operator import eq
        >>> with GraderPool(eq, workers=1) as pool:
        ...     [grade.reward for grade in pool.grade(["4", "5"], ["4", "4"])]
        [1.0, 0.0]
    """

    def __init__(
        self,
        grader: Callable[..., Any],
        *,
        workers: int | None = None,
        timeout_s: float = 10.0,
        start_timeout_s: float = 60.0,
    ) -> None:
        if MARK in os.environ:
            raise RuntimeError(
                "a grader's module makes a GraderPool while a worker imports it; make the pool in a function, or "
                'under if __name__ == "__main__":'
            )
        if workers is None:
            workers = min(len(os.sched_getaffinity(0)), 8)
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers={workers!r}; give a whole number of 1 or more")
        for name, seconds in (("timeout_s", timeout_s), ("start_timeout_s", start_timeout_s)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
                raise ValueError(f"{name}={seconds!r}; give a number of seconds above 0")
        self.workers, self.timeout_s, self.start_timeout_s = workers, float(timeout_s), float(start_timeout_s)
        self._order = order_for(grader)
        self._lock = threading.RLock()  # again by a signal's handler, which closes
        self._jobs = queue.SimpleQueue[tuple[Future[Grade], bytes] | None]()
        self._unfinished = 0  # rows
        self._threads: list[threading.Thread] = []  # one to each worker
        self._living: set[Worker] = set()
        self._closed = False
        self._broken: GraderError | None = None
        self._pid = os.getpid()
        endings.close_at_end(self)

    def grade(self, responses: Sequence[str], references: Sequence[Any]) -> list[Grade]:
        """Grade rows, as many at once as there are workers.

        Args:
            responses: answers.
            references: for each answer what the grader compares it with; anything that can be pickled.

        Raises:
            GraderError: no worker can load the grader.
            RuntimeError: the pool is closed, or was while it graded.
            TypeError: a response that is no text, or a reference that cannot be pickled.
            ValueError: another number of references than of responses.
        """
        if isinstance(responses, str):
            raise TypeError("responses is one text; give a list of texts")
        if len(responses) != len(references):
            raise ValueError(f"{len(responses)} responses and {len(references)} references; give one for each")
        rows = [_packed(response, reference) for response, reference in zip(responses, references)]
        futures: list[Future[Grade]] = []
        try:
            futures += (self._put(row) for row in rows)
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def submit(self, response: str, reference: Any) -> Future[Grade]:
        """Grade one row, in the background; the future raises what `grade` does. It can be cancelled until it runs."""
        return self._put(_packed(response, reference))

    def close(self) -> None:
        """End all workers. Rows that are not graded get RuntimeError. May be called twice, and from any thread."""
        if os.getpid() != self._pid:  # a forked child has no part in it
            return
        with self._lock:
            self._closed = True
            threads, living = list(self._threads), list(self._living)
        endings.closed(self)
        for _ in threads:
            self._jobs.put(None)
        for worker in living:
            worker.end()
        for thread in threads:
            if thread is not threading.current_thread():  # from a callback of a future
                thread.join(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _put(self, row: bytes) -> Future[Grade]:
        future: Future[Grade] = Future()
        with self._lock:
            if os.getpid() != self._pid:
                raise RuntimeError("this pool is of the process that this one was forked from; make one here")
            self._check()
            self._unfinished += 1
            self._jobs.put((future, row))
            if len(self._threads) < min(self.workers, self._unfinished):
                name = f"statelesschat-grading-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        return future

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError("the pool of graders is closed; make a new one, and close it when all rows are graded")
        if self._broken is not None:
            raise GraderError(str(self._broken)) from self._broken

    def _serve(self) -> None:
        """Give rows to one worker, until the pool is closed."""
        worker: Worker | None = None
        while (job := self._jobs.get()) is not None:
            future, row = job
            del job
            try:
                if future.set_running_or_notify_cancel():
                    worker = self._begun(worker, row)
                    future.set_result(self._graded(worker))
            except BaseException as error:  # whoever waits is told
                future.set_exception(error)
            finally:
                with self._lock:
                    self._unfinished -= 1
                del future, row  # nothing is kept until the next comes
        if worker is not None:
            self._dismiss(worker)

    def _begun(self, worker: Worker | None, row: bytes) -> Worker:
        """A worker that has begun with a row; that one ends before is not the row's doing."""
        for _ in range(2):
            worker = self._hired(worker)
            try:
                worker.begin(row, self.start_timeout_s)
                break
            except (TimeoutError, WorkerDiedError):
                self._dismiss(worker)
        assert worker is not None
        return worker

    def _graded(self, worker: Worker) -> Grade:
        began = time.monotonic()
        try:
            match worker.hear(self.timeout_s):
                case ["reward", float(reward)] if math.isfinite(reward):
                    outcome, detail = Outcome.OK, ""
                case ["raised", str(detail)]:
                    reward, outcome = 0.0, Outcome.FAULT
                case said:
                    raise WorkerDiedError(f"the worker process wrote what is no reply: {said!r:.200}")
        except TimeoutError:
            reward, outcome, detail = 0.0, Outcome.TIMEOUT, f"the grader took longer than {self.timeout_s:g} s"
        except WorkerDiedError as error:
            reward, outcome, detail = 0.0, Outcome.DEAD, str(error)
        ms = (time.monotonic() - began) * 1000
        if outcome in (Outcome.TIMEOUT, Outcome.DEAD):
            self._dismiss(worker)
            with self._lock:
                if self._closed:  # which ended the worker
                    self._check()
        return Grade(reward, outcome, detail, ms)

    def _hired(self, worker: Worker | None) -> Worker:
        """This worker if it can work, else a new one."""
        self._check()
        if worker is not None:
            if worker.alive():
                return worker
            self._dismiss(worker)
        failed = GraderError()
        for pause in _PAUSES_S:
            time.sleep(pause)
            try:
                return self._started()
            except GraderError as error:
                failed = error
                break
            except (TimeoutError, WorkerDiedError, OSError) as error:
                self._check()  # close ends workers that are about to start
                said = str(error) or f"it takes longer than start_timeout_s={self.start_timeout_s:g}"
                failed = GraderError(f"no worker can be started with the grader: {said}; see stderr")
                failed.__cause__ = error
                if isinstance(error, TimeoutError):
                    break
        self._broken = failed
        raise failed

    def _started(self) -> Worker:
        worker = Worker()
        with self._lock:
            self._living.add(worker)
            closed = self._closed
        try:
            if not closed:
                worker.meet(self._order, self.start_timeout_s)
        except BaseException:
            self._dismiss(worker)
            raise
        if closed:
            self._dismiss(worker)
            self._check()
        return worker

    def _dismiss(self, worker: Worker) -> None:
        worker.close()
        with self._lock:
            self._living.discard(worker)


def _packed(response: str, reference: Any) -> bytes:
    if not isinstance(response, str):
        raise TypeError(f"a response is a {type(response).__name__}; give text")
    try:
        return pickle.dumps((response, reference))
    except Exception as error:
        raise TypeError(f"reference {reference!r:.200} cannot be pickled: {error}; give plain values") from error
