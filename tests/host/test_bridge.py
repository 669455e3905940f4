"""The one crossing: how often the host is called through any nest of transforms, and what becomes of faults."""

import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from statelesschat.host import bridge
from statelesschat.host.bridge import Reached, cross, raised, register, unregister
from statelesschat.host.callback import public_callback
from tests.host.fake import LONG

A, K = 3, 2


class Handler:
    """Answers with the first two entries times ten, and looks at what it is given."""

    def __init__(self, factor: int = 10) -> None:
        self.factor = factor
        self.fault: BaseException | None = None
        self.wrong: Any = None
        self.given: list[np.ndarray] = []

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        assert type(rows) is np.ndarray and rows.dtype == np.int32 and rows.ndim == 2
        self.given.append(rows.copy())
        if self.fault is not None:
            raise self.fault
        return rows[:, :K] * np.int32(self.factor) if self.wrong is None else self.wrong


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    while raised() is not None:
        pass
    yield
    assert raised() is None


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def handle(handler: Handler) -> Iterator[Any]:
    handle = register(handler, K)
    yield jnp.int32(handle)
    unregister(handle)


def rows(*shape: int) -> Any:
    return jnp.arange(np.prod(shape) * A, dtype=jnp.int32).reshape(*shape, A)


def wanted(packed: Any, active: Any, factor: int = 10) -> np.ndarray:
    packed, active = np.asarray(packed), np.asarray(active)
    answers = np.concatenate([np.ones((*active.shape, 1), np.int32), packed[..., :K] * factor], axis=-1)
    return np.where(active[..., None], answers, 0)


def ask(packed: Any, handle: Any, active: Any) -> Any:
    reached, answer = cross(packed, handle, active, K)
    return jnp.concatenate([reached[None], answer])


EACH = jax.vmap(ask, (0, None, 0))


def vmap_of_vmap(packed: Any, handle: Any, active: Any) -> Any:
    return jax.vmap(EACH, (0, None, 0))(packed, handle, active)


def scan_of_vmap(packed: Any, handle: Any, active: Any) -> Any:
    return jax.lax.scan(lambda carry, x: (carry, EACH(x[0], handle, x[1])), None, (packed, active))[1]


def vmap_of_scan(packed: Any, handle: Any, active: Any) -> Any:
    def one(packed: Any, active: Any) -> Any:
        return jax.lax.scan(lambda carry, x: (carry, ask(x[0], handle, x[1])), None, (packed, active))[1]

    return jax.vmap(one)(packed, active)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("program", "shape", "times"),
    [
        (ask, (), 1),
        (EACH, (4,), 1),
        (vmap_of_vmap, (3, 4), 1),
        (scan_of_vmap, (3, 4), 3),
        (vmap_of_scan, (3, 4), 4),
        (jax.vmap(scan_of_vmap, (0, None, 0)), (2, 3, 4), 3),
        (jax.vmap(jax.jit(EACH), (0, None, 0)), (3, 4), 1),
    ],
    ids=["row", "vmap", "vmap of vmap", "scan of vmap", "vmap of scan", "vmap of scan of vmap", "vmap of jit of vmap"],
)
def test_the_host_is_called_once_for_each_step_of_a_device(
    program: Any, shape: Any, times: int, jit: bool, handler: Handler, handle: Any
) -> None:
    packed, active = rows(*shape), jnp.ones(shape, bool).reshape(-1).at[1:2].set(False).reshape(shape)
    run = jax.jit(program) if jit else program
    before = bridge.calls()
    answers = np.asarray(run(packed, handle, active))
    assert bridge.calls() - before == times == len(handler.given)
    np.testing.assert_array_equal(answers, wanted(packed, active))
    assert answers.dtype == np.int32
    assert sum(len(given) for given in handler.given) == int(np.sum(active))  # idle rows are not told of
    answers = np.asarray(run(packed, handle, jnp.zeros(shape, bool)))
    assert not answers.any() and bridge.calls() - before == times  # where no row acts there is no call


def test_without_the_private_parts_of_jax_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, handle: Any
) -> None:
    taken: list[Any] = []

    def public(call: Any, shapes: Any, *arrays: Any) -> Any:
        taken.append(shapes)
        return public_callback(call, shapes, *arrays)

    monkeypatch.setattr(bridge, "host_callback", public)
    packed, active = rows(3, 4), jnp.ones((3, 4), bool)
    before = bridge.calls()
    jax.clear_caches()
    answers = jax.jit(lambda packed, active: scan_of_vmap(packed, handle, active))(packed, active)
    np.testing.assert_array_equal(answers, wanted(packed, active))
    assert bridge.calls() - before == 3 and ((4,), (4, K)) in taken
    jax.clear_caches()


def test_outside_of_jit_it_is_a_plain_call(monkeypatch: pytest.MonkeyPatch, handler: Handler, handle: Any) -> None:
    here: list[int] = []
    call = Handler.__call__
    monkeypatch.setattr(Handler, "__call__", lambda self, rows: here.append(threading.get_ident()) or call(self, rows))
    packed, active = rows(4), jnp.ones(4, bool)
    np.testing.assert_array_equal(ask(packed[0], handle, True), wanted(packed[0], np.bool_(True)))
    np.testing.assert_array_equal(EACH(packed, handle, active), wanted(packed, active))
    assert here == [threading.get_ident()] * 2


def test_under_shard_map_each_device_calls_once_and_all_at_the_same_time() -> None:
    barrier = threading.Barrier(8)

    def meet(rows: np.ndarray) -> np.ndarray:
        barrier.wait(LONG)
        return rows[:, :K] * np.int32(10)

    handle = register(meet, K)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    split = PartitionSpec("d")
    sharded = jax.shard_map(
        lambda packed, active: EACH(packed, jnp.int32(handle), active), mesh=mesh, in_specs=split, out_specs=split
    )
    packed, active = rows(16), jnp.ones(16, bool)
    before = bridge.calls()
    answers = np.asarray(jax.jit(sharded)(packed, active))
    assert bridge.calls() - before == 8
    np.testing.assert_array_equal(answers, wanted(packed, active))
    unregister(handle)


def test_a_jit_of_sharded_inputs_gives_the_right_answers(handler: Handler, handle: Any) -> None:
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    placed = NamedSharding(mesh, PartitionSpec("d"))
    packed = jax.device_put(rows(16), placed)
    active = jax.device_put(jnp.arange(16) % 3 > 0, placed)
    run = jax.jit(lambda packed, active: jnp.cumsum(EACH(packed, handle, active) + packed, axis=0))
    before = bridge.calls()
    answers = run(packed, active)
    np.testing.assert_array_equal(answers, np.cumsum(wanted(packed, active) + np.asarray(packed), axis=0))
    assert bridge.calls() - before == 1
    looped = jax.jit(lambda p, a: jax.lax.fori_loop(0, 3, lambda i, p: EACH(p, handle, a) + p, p))(packed, active)
    assert np.asarray(looped).shape == (16, A) and bridge.calls() - before == 4


@pytest.mark.parametrize("run", [EACH, jax.jit(EACH)], ids=["eager", "jit"])
def test_a_handler_that_raises_is_an_answer_and_the_exception_is_kept(run: Any, handler: Handler, handle: Any) -> None:
    handler.fault = KeyError("the cause")
    answers = np.asarray(run(rows(4), handle, jnp.asarray([True, False, True, True])))
    assert answers.tolist() == [[Reached.BROKEN, 0, 0], [Reached.NOBODY, 0, 0], *[[Reached.BROKEN, 0, 0]] * 2]
    assert raised() is handler.fault and raised() is None
    handler.fault = KeyboardInterrupt()
    assert (np.asarray(run(rows(4), handle, jnp.ones(4, bool)))[:, 0] == Reached.BROKEN).all()
    assert raised() is handler.fault and raised() is None
    handler.fault = None
    np.testing.assert_array_equal(run(rows(4), handle, jnp.ones(4, bool)), wanted(rows(4), np.ones(4, bool)))


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((4, K + 1), np.int32), np.zeros((3, K), np.int32), np.zeros((4, K), np.int64), np.zeros(4), None, "no"],
)
def test_an_answer_of_another_shape_is_broken(wrong: Any, handler: Handler, handle: Any) -> None:
    handler.wrong = wrong if wrong is not None else [None] * 4
    answers = np.asarray(EACH(rows(4), handle, jnp.ones(4, bool)))
    assert answers.tolist() == [[Reached.BROKEN, 0, 0]] * 4
    error = raised()
    assert isinstance(error, TypeError) and "int32[4, 2] is needed" in str(error)


@pytest.mark.parametrize("run", [EACH, jax.jit(EACH)], ids=["eager", "jit"])
def test_a_handle_that_is_not_registered_is_gone(run: Any, handler: Handler, handle: Any) -> None:
    other = register(handler, K + 1)  # of another width
    for unknown in (0, -5, 2**31 - 1, other):
        answers = np.asarray(run(rows(4), jnp.int32(unknown), jnp.ones(4, bool)))
        assert answers.tolist() == [[Reached.GONE, 0, 0]] * 4
    unregister(other)
    unregister(int(handle))
    unregister(int(handle))
    assert np.asarray(run(rows(4), handle, jnp.ones(4, bool)))[:, 0].tolist() == [Reached.GONE] * 4
    assert handler.given == []


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_rows_of_one_batch_may_have_different_handlers(jit: bool, handler: Handler, handle: Any) -> None:
    broken, second = Handler(), Handler(100)
    broken.fault = ValueError("one of them")
    others = [register(second, K), register(broken, K), 0]
    handles = jnp.asarray([int(handle), others[0], int(handle), others[1], others[2]], jnp.int32)
    each = jax.vmap(ask)
    before = bridge.calls()
    answers = np.asarray((jax.jit(each) if jit else each)(rows(5), handles, jnp.ones(5, bool)))
    assert bridge.calls() - before == 1
    assert answers.tolist() == [[1, 0, 10], [1, 300, 400], [1, 60, 70], [Reached.BROKEN, 0, 0], [Reached.GONE, 0, 0]]
    assert raised() is broken.fault
    for other in others:
        unregister(other)


def test_a_program_that_is_compiled_reaches_a_handler_that_is_registered_later(handler: Handler, handle: Any) -> None:
    run = jax.jit(EACH)
    packed, active = rows(4), jnp.ones(4, bool)
    np.testing.assert_array_equal(run(packed, handle, active), wanted(packed, active))
    unregister(int(handle))
    later = register(Handler(7), K)
    np.testing.assert_array_equal(run(packed, jnp.int32(later), active), wanted(packed, active, 7))
    assert run._cache_size() == 1
    unregister(later)


def test_what_was_donated_survives_a_handler_that_raises(handler: Handler, handle: Any) -> None:
    handler.fault = ValueError("no")

    def program(state: Any, packed: Any) -> Any:
        return state + EACH(packed, handle, jnp.ones(4, bool))

    state = jnp.ones((4, 1 + K), jnp.int32)
    after = jax.jit(program, donate_argnums=0)(state, rows(4))
    assert state.is_deleted()
    assert after.tolist() == [[1 + Reached.BROKEN, 1, 1]] * 4
    assert raised() is handler.fault


def test_gradients_go_through_a_program_with_a_crossing(handler: Handler, handle: Any) -> None:
    def loss(x: Any, packed: Any) -> Any:
        answers = EACH(packed, handle, jnp.ones(4, bool))
        return jnp.sum(answers[:, 1].astype(jnp.float32) * x**2)

    x, packed = jnp.arange(4, dtype=jnp.float32), rows(4)
    want = 2 * np.asarray(x) * 10 * np.asarray(packed)[:, 0]
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x, packed), want)
    np.testing.assert_allclose(jax.grad(loss)(x, packed), want)

    def sampled(x: Any) -> Any:  # what is asked depends on what is differentiated, as an action does on params
        packed = jnp.stack([jnp.round(x).astype(jnp.int32)] * A, axis=1)
        return loss(x, packed)

    value, gradient = jax.jit(jax.value_and_grad(sampled))(x)
    np.testing.assert_allclose(gradient, 20 * np.arange(4) ** 2)
    np.testing.assert_allclose(value, 10 * np.sum(np.arange(4) ** 3))


def test_under_checkpoint_a_crossing_is_refused(handle: Any) -> None:
    @jax.checkpoint
    def program(x: Any) -> Any:
        packed = jnp.stack([jnp.round(x).astype(jnp.int32)] * A, axis=1)
        return jnp.sum(EACH(packed, handle, jnp.ones(4, bool))[:, 1].astype(jnp.float32) * jnp.sin(x))

    with pytest.raises(NotImplementedError):
        jax.jit(jax.grad(program))(jnp.ones(4))


def test_calls_of_several_threads_are_all_counted(handler: Handler, handle: Any) -> None:
    run = jax.jit(EACH)
    packed, active = rows(4), jnp.ones(4, bool)
    jax.block_until_ready(run(packed, handle, active))
    before = bridge.calls()
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(20):
            if not np.array_equal(run(packed, handle, active), wanted(packed, active)):
                wrong.append("other answers")

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert wrong == [] and bridge.calls() - before == 120


@pytest.mark.parametrize("width", [0, -1, True, 1.0, "2"])
def test_a_width_that_makes_no_sense_is_refused(width: Any) -> None:
    with pytest.raises(ValueError, match="at least one int32"):
        register(Handler(), width)
