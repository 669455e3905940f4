"""The one crossing from device to host: a batched call per step, through any nest of transforms.

A call is one packed int32 row out and one back. Under `jax.vmap` the function batches itself one rank higher, so a
whole batch is one call of the host; where no row acts there is none. Called outside of jit it is a plain function
call, with no callback. Handlers get and give numpy, and never raise into the program: a fault is an answer.
"""

import collections
import enum
import functools
import itertools
import logging
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import xla_bridge
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Int

from statelesschat.host.callback import host_callback

Handler = Callable[[Int[np.ndarray, "N A"]], Int[np.ndarray, "N K"]]
"""What is reached: rows that act, int32[N, A], only to be read, to answers int32[N, K]. Threads may call it at once."""

_handlers: dict[int, tuple[Handler, int]] = {}  # handle -> handler and the width of its answers
_handles = itertools.count(1)
_raised: collections.deque[BaseException] = collections.deque(maxlen=64)
_counts = collections.Counter[str]()
_counting = threading.Lock()
_log = logging.getLogger(__name__)


class Reached(enum.IntEnum):
    """Whether a row was answered."""

    NOBODY = 0  # the row did not act
    ANSWERED = 1
    GONE = 2  # the handle is not registered (any more)
    BROKEN = 3  # the handler raised, or gave an array of another shape; `raised` has the exception


def register(handler: Handler, width: int) -> int:
    """Make a handler reachable; the handle returned is an int32 that states carry.

    Args:
        handler: `Handler`, numpy only: jax operations inside of one can deadlock.
        width: K, the length of its answers.
    """
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"width={width!r}; an answer is at least one int32 wide")
    watch_dispatch()
    handle = next(_handles)
    _handlers[handle] = handler, width
    return handle


def unregister(handle: int) -> None:
    """Forget a handler: rows that still ask for it are told GONE. One that is unknown is passed over."""
    _handlers.pop(handle, None)


def cross(
    packed: Int[Array, "A"], handle: Int[Array, ""], active: Bool[Array, ""], width: int
) -> tuple[Int[Array, ""], Int[Array, "K"]]:
    """Reach the handler of a handle, for one row; the caller vmaps.

    Args:
        packed: int32[A], what it is told.
        handle: int32, of `register`. Rows of one batch may have different ones.
        active: where False the host is told nothing, and if no row is active it is not called.
        width: K, of `register`.

    Returns:
        int32, a `Reached`, and int32[K], the answer; zeros where there is none.

    Raises:
        NotImplementedError: by jax, where it is differentiated under ``jax.checkpoint``, which would call it twice.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from statelesschat.host.bridge import cross, register, unregister
        >>> handle = register(lambda rows: rows[:, :1] * 10, 1)
        >>> rows, active = jnp.array([[1], [2], [3]]), jnp.array([True, True, False])
        >>> ask = jax.jit(jax.vmap(lambda row, active: cross(row, jnp.int32(handle), active, 1)))
        >>> reached, answers = ask(rows, active)
        >>> reached.tolist(), answers.tolist()
        ([1, 1, 0], [[10], [20], [0]])
        >>> unregister(handle)
    """
    front = jnp.stack([jnp.asarray(active).astype(jnp.int32), jnp.asarray(handle, jnp.int32)])
    if isinstance(front, Tracer) or isinstance(packed, Tracer):
        return _crossing(width)(front, packed)
    return _called(width, front, packed)


def calls() -> int:
    """How many times the host was called so far, for tests and benchmarks: one batch is one call."""
    return _counts["calls"]


def raised() -> BaseException | None:
    """The oldest exception that fell into a call, an interrupt too, and could not be raised there; each comes once."""
    return _raised.popleft() if _raised else None


@functools.cache
def _crossing(width: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    """The crossing of answers of a width, as a function that batches itself."""

    @custom_vmap
    def crossing(front: Array, packed: Array) -> tuple[Array, Array]:
        return _reach(front, packed, width)

    @crossing.def_vmap
    def _batched(size: int, batched: list[bool], front: Array, packed: Array) -> Any:
        if not batched[0]:
            front = jnp.broadcast_to(front, (size, *front.shape))
        if not batched[1]:
            packed = jnp.broadcast_to(packed, (size, *packed.shape))
        traced = isinstance(front, Tracer) or isinstance(packed, Tracer)
        return (crossing if traced else functools.partial(_called, width))(front, packed), (True, True)

    return crossing


def _reach(front: Array, packed: Array, width: int) -> tuple[Array, Array]:
    """The host, for arrays with all batch axes in front, as part of a program."""
    shapes = front.shape[:-1], (*front.shape[:-1], width)
    return lax.cond(
        jnp.any(front[..., 0] != 0),
        lambda *told: tuple(host_callback(_caller(width), shapes, *told)),
        lambda *told: tuple(jnp.zeros(shape, jnp.int32) for shape in shapes),
        front,
        packed,
    )


@functools.cache
def _caller(width: int) -> Callable[..., Any]:
    """One object for each width: programs are told apart by it."""
    return functools.partial(_call, width)


def _called(width: int, front: Array, packed: Array) -> tuple[Array, Array]:
    """The host, outside of any program."""
    reached, answers = _call(width, front, packed)
    return jnp.asarray(reached), jnp.asarray(answers)


def _call(width: int, front: Any, packed: Any) -> tuple[Int[np.ndarray, "..."], Int[np.ndarray, "... K"]]:
    """One call of the host, for rows of any number of batch axes: never raises."""
    front, packed = np.asarray(front), np.asarray(packed)
    shape = front.shape[:-1]
    rows = packed.reshape(-1, packed.shape[-1])
    acts, handles = front[..., 0].reshape(-1) != 0, front[..., 1].reshape(-1)
    reached = np.zeros(len(rows), np.int32)
    if not acts.any():
        return reached.reshape(shape), np.zeros((*shape, width), np.int32)
    with _counting:
        _counts["calls"] += 1
    try:
        if acts.all() and (handles == handles[0]).all():  # as a rule: nothing is gathered, scattered or copied
            reached[:], answers = _answers(int(handles[0]), rows, width)
        else:
            answers = np.zeros((len(rows), width), np.int32)
            for handle in np.unique(handles[acts]):
                own = np.flatnonzero(acts & (handles == handle))
                reached[own], answers[own] = _answers(int(handle), rows[own], width)
    except BaseException as error:  # noqa: BLE001
        # Raised here it would lose its cause and delete what was donated; Ctrl-C would be swallowed.
        _raised.append(error)
        reached[acts], answers = Reached.BROKEN, np.zeros((len(rows), width), np.int32)
    return reached.reshape(shape), answers.reshape(*shape, width)


def _answers(handle: int, rows: Int[np.ndarray, "N A"], width: int) -> tuple[Reached, Int[np.ndarray, "N K"]]:
    """What the handler gives, or why it gives nothing."""
    nothing = np.zeros((len(rows), width), np.int32)
    handler, promised = _handlers.get(handle, (None, width))
    if handler is None or promised != width:
        return Reached.GONE, nothing
    try:
        given = np.asarray(handler(rows))
        if given.shape != (len(rows), width) or given.dtype != np.int32:
            raise TypeError(f"the handler gave {given.dtype}{list(given.shape)}; int32{[len(rows), width]} is needed")
    except Exception as error:
        _log.exception("a handler of the host bridge raised")
        _raised.append(error)
        return Reached.BROKEN, nothing
    return Reached.ANSWERED, given


def watch_dispatch() -> None:
    """On one CPU core, asynchronous dispatch of the CPU backend can hang in a callback: turn it off, or say so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores != 1 or not jax.config.read("jax_cpu_enable_async_dispatch"):
        return
    if not xla_bridge.backends_are_initialized():
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    elif jax.default_backend() == "cpu":
        warnings.warn(
            "this process has one CPU core and jax dispatches asynchronously: calls of the host can hang. Call "
            'jax.config.update("jax_cpu_enable_async_dispatch", False) before jax is first used',
            stacklevel=3,
        )
