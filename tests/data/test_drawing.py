"""Drawing: every row as often as asked, in every epoch, over all shards, whatever the batch; saved at any point."""

import collections
import dataclasses
import io
import pickle
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

import statelesschat as sc
from statelesschat.data import Cursor, RowInfo, make_cursor, next_batch, take_rows
from tests.data.make import codec, drawn, epochs, quickly, reset, slots, table

# rows, batch, repeats, shards: few of them, as each is a program
SHAPES = st.sampled_from([(1, 1, 1, 1), (2, 4, 3, 1), (5, 4, 1, 2), (13, 7, 3, 2)])


def saved_by_numpy(cursor: Cursor) -> Cursor:
    file = io.BytesIO()
    np.savez(file, **dataclasses.asdict(cursor))
    file.seek(0)
    return Cursor(**np.load(file))


def saved_by_pickle(cursor: Cursor) -> Cursor:
    return pickle.loads(pickle.dumps(cursor))


@given(
    st.integers(1, 13), st.integers(1, 16), st.integers(1, 3), st.integers(1, 7), st.booleans(), st.integers(1, 2),
    st.integers(0, 99),
)  # fmt: skip
def test_every_row_as_often_as_asked(
    rows: int, batch: int, repeats: int, count: int, shuffle: bool, number: int, seed: int
) -> None:
    data = table(rows)
    by_epoch: list[list[tuple[int, int, int]]] = [[] for _ in range(number)]
    for index in range(count):
        cursor = make_cursor(seed, num_epochs=number)
        options = {"repeats": repeats, "shuffle": shuffle, "index": index, "count": count}
        found = list(epochs(cursor, data, batch, **options))
        assert len(found) == number
        for epoch, one in enumerate(found):
            assert [repeat for *_, repeat in one] == list(range(repeats)) * (len(one) // repeats)
            for at in range(0, len(one), repeats):
                group = {(row, group) for row, group, _ in one[at : at + repeats]}
                assert len(group) == 1, "repeats of a row lie one behind the other"
            places = [group - epoch * rows for _, group, _ in one[::repeats]]
            assert places == list(range(index, rows, count))
            by_epoch[epoch] += one
    for one in by_epoch:
        assert collections.Counter(row for row, *_ in one) == dict.fromkeys(range(rows), repeats)
        if not shuffle:
            assert all(row == group % rows for row, group, _ in one)
    groups = [group for one in by_epoch for _, group, _ in one]
    assert set(collections.Counter(groups).values()) == {repeats}


@given(SHAPES, st.integers(0, 12), st.sampled_from([saved_by_numpy, saved_by_pickle]))
def test_a_saved_cursor_goes_on_exactly(shape: tuple[int, int, int, int], stop: int, saved: Any) -> None:
    rows, batch, repeats, _ = shape
    data, cursor = table(rows), make_cursor(jax.random.key(rows))
    for _ in range(stop):
        cursor, *_ = drawn(cursor, data, batch, repeats)
    other = saved(cursor)
    chex.assert_trees_all_equal(cursor, jax.tree.map(jnp.asarray, other))
    for _ in range(4):
        cursor, *one = drawn(cursor, data, batch, repeats)
        other, *two = drawn(other, data, batch, repeats)
        chex.assert_trees_all_equal(one, two)
    chex.assert_trees_all_equal(cursor, other)


@given(SHAPES, st.data())
def test_only_the_rows_asked_for_draw(shape: tuple[int, int, int, int], choice: st.DataObject) -> None:
    """With `where` the same slots come in the same order, in the rows that ask, however they ask."""
    rows, batch, repeats, count = shape
    data = table(rows)
    index = choice.draw(st.integers(0, count - 1))
    options = {"repeats": repeats, "index": index, "count": count}
    plain = list(epochs(make_cursor(5, num_epochs=2), data, batch, **options))
    cursor, found, one = make_cursor(5, num_epochs=2), [], []
    rng = np.random.default_rng(choice.draw(st.integers(0, 999)))
    for _ in range(2000):
        if bool(cursor.exhausted):
            break
        where = rng.random(batch) < 0.6
        before = int(cursor.position)
        cursor, batch_data, valid = drawn(cursor, data, batch, where=jnp.asarray(where), **options)
        valid = np.asarray(valid)
        assert not (valid & ~where).any()
        assert list(valid[where]) == sorted(valid[where], reverse=True), "slots go to the rows that ask in order"
        assert bool(cursor.epoch_ended) or int(cursor.position) == before + where.sum()
        one += slots(batch_data, valid)
        if bool(cursor.epoch_ended):
            found.append(one)
            one = []
    assert found == plain


@pytest.mark.parametrize(("rows", "batch", "repeats", "shuffle"), [(13, 7, 3, True), (3, 4, 2, False)])
def test_jit_equals_eager(rows: int, batch: int, repeats: int, shuffle: bool) -> None:
    data, cursor = table(rows), make_cursor(3)
    for _ in range(2):
        with jax.disable_jit():
            eager = next_batch(cursor, data, batch, repeats, shuffle=shuffle)
        jitted = drawn(cursor, data, batch, repeats, shuffle=shuffle)
        chex.assert_trees_all_equal(eager, jitted)
        cursor = jitted[0]


def test_one_trace_over_epochs_and_the_ragged_last_batch() -> None:
    data = table(30)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def draw(cursor: Cursor, data: sc.ChatData) -> Any:
        return next_batch(cursor, data, 16)

    cursor, counts = make_cursor(0, num_epochs=2), []
    for _ in range(6):
        cursor, _, valid = draw(cursor, data)
        counts.append((int(valid.sum()), bool(cursor.epoch_ended), int(cursor.epoch), bool(cursor.exhausted)))
    last = (0, True, 2, True)
    assert counts == [
        (16, False, 0, False),
        (14, True, 1, False),
        (16, False, 1, False),
        (14, True, 2, True),
        last,
        last,
    ]


def test_nothing_moves_after_the_last_epoch() -> None:
    cursor, data, valid = drawn(make_cursor(0, num_epochs=1), table(3), 4)
    after, data, valid = drawn(cursor, table(3), 4)
    chex.assert_trees_all_equal(cursor, after)
    assert not np.asarray(valid).any()
    assert (np.asarray(data.info.row_id) == -1).all()


def test_scan_equals_a_loop() -> None:
    data, cursor = table(13), make_cursor(1)
    scanned = jax.jit(
        lambda c, d: jax.lax.scan(lambda c, _: (lambda r: (r[0], r[1:]))(next_batch(c, d, 4, 3)), c, length=12)
    )
    end, outs = scanned(cursor, data)
    for at in range(12):
        cursor, *out = drawn(cursor, data, 4, 3)
        chex.assert_trees_all_equal(tuple(out), jax.tree.map(lambda x, at=at: x[at], outs))
    chex.assert_trees_all_equal(cursor, end)


def test_nothing_crosses_to_the_host() -> None:
    data, cursor = table(13), make_cursor(1)
    draw = jax.jit(lambda c, d: next_batch(c, d, 4, 3))
    with jax.transfer_guard("disallow"):
        cursor, data, valid = draw(cursor, data)
        cursor, _, _ = next_batch(cursor, data, 4, 2, index=1, count=2)


def test_rows_that_are_not_valid_are_done_at_once() -> None:
    config = codec().config
    data = sc.data.from_iterable(["one", "two", "three"], codec())
    _, batch, valid = drawn(make_cursor(0), data, 5)
    states = reset(sc.init(config, take_rows(data, 0)), batch)
    assert (np.asarray(states.done) == ~np.asarray(valid)).all()
    assert not np.asarray(valid)[3:].any()
    assert np.asarray(batch.turn_limit).tolist() == [4, 4, 4, 0, 0]


def test_a_restart_takes_what_is_drawn() -> None:
    """A loop that begins new conversations in the rows that are done."""
    config, rows = codec().config, sc.data.from_iterable([f"question {i}" for i in range(5)], codec())
    cursor, batch, _ = drawn(make_cursor(0), rows, 3)
    states = reset(sc.init(config), batch)
    states = quickly(jax.vmap(sc.terminate))(states, jnp.asarray([False, True, False]))
    cursor, batch, valid = drawn(cursor, rows, 3, where=states.done)
    states = quickly(jax.vmap(sc.restart))(states, batch, states.done)
    assert np.asarray(valid).tolist() == [False, True, False]
    assert not np.asarray(states.done).any()
    assert len(set(np.asarray(states.info.row_id).tolist())) == 3
    assert int(cursor.position) == 4


def test_what_is_drawn_is_the_row() -> None:
    _, batch, _ = drawn(make_cursor(9), table(13), 13, 1)
    ids = np.asarray(batch.info.row_id)
    assert (np.asarray(batch.tokens)[:, 0] == ids).all()
    assert (np.asarray(batch.info.task["twice"]) == 2 * ids).all()


def test_drop_last_leaves_out_what_fills_no_batch() -> None:
    cursor, found = make_cursor(0), []
    for _ in range(5):
        cursor, batch, valid = drawn(cursor, table(10), 8, 2, drop_last=True)
        assert np.asarray(valid).all()
        found.append((int(cursor.epoch), int(cursor.position)))
    assert found == [(0, 8), (1, 0), (1, 8), (2, 0), (2, 8)]


def test_drop_last_after_a_batch_of_another_size() -> None:
    cursor, *_ = drawn(make_cursor(0), table(10), 7)
    cursor, _, valid = drawn(cursor, table(10), 4, drop_last=True)
    assert not np.asarray(valid).any(), "three rows are left, which fill no batch of four"
    assert (int(cursor.epoch), bool(cursor.epoch_ended)) == (1, True)


def test_info_of_another_kind_becomes_the_task() -> None:
    rows = table(3)
    plain = dataclasses.replace(rows, info={"gold": jnp.arange(3) * 10})
    _, batch, _ = drawn(make_cursor(0), plain, 3, shuffle=False)
    assert isinstance(batch.info, RowInfo)
    assert np.asarray(batch.info.task["gold"]).tolist() == [0, 10, 20]
    assert np.asarray(batch.info.row_id).tolist() == [0, 1, 2]
    bare = drawn(make_cursor(0), dataclasses.replace(rows, info=None), 3)[1]
    assert bare.info.task is None


def test_shards_by_the_axis_of_a_mesh() -> None:
    """Each device draws its shard with a cursor of its own; together they give what shards one by one give."""
    devices, rows = 8, table(21)
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = PartitionSpec("data"), PartitionSpec()

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(split, whole), out_specs=split)
    def draw(cursors: Cursor, rows: sc.ChatData) -> Any:
        cursor = jax.tree.map(lambda x: x[0], cursors)
        cursor, data, valid = next_batch(cursor, rows, 2, 2, index=jax.lax.axis_index("data"), count=devices)
        return jax.tree.map(lambda x: x[None], (cursor, data, valid))

    cursors = jax.tree.map(lambda x: jnp.broadcast_to(x, (devices, *x.shape)), make_cursor(4))
    singles = [make_cursor(4)] * devices
    for _ in range(4):
        cursors, data, valid = draw(cursors, rows)
        for index in range(devices):
            singles[index], one, ok = drawn(singles[index], rows, 2, 2, index=index, count=devices)
            got = jax.tree.map(lambda x, i=index: x[i], (cursors, data, valid))
            chex.assert_trees_all_equal(jax.device_get(got), jax.device_get((singles[index], one, ok)))


def test_more_shards_than_rows() -> None:
    cursor = make_cursor(0)
    for epoch in range(1, 4):
        cursor, _, valid = drawn(cursor, table(2), 4, index=5, count=7)
        assert not np.asarray(valid).any()
        assert (int(cursor.epoch), bool(cursor.epoch_ended)) == (epoch, True)


def test_group_ids_stay_nonnegative_when_they_run_over() -> None:
    cursor = dataclasses.replace(make_cursor(0), epoch=jnp.int32(2**31 - 2))
    _, data, _ = drawn(cursor, table(3), 3)
    assert (np.asarray(data.info.group_id) >= 0).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch=0"),
        ({"repeats": 0}, "repeats=0"),
        ({"repeats": 2.0}, "repeats=2.0"),
        ({"index": 2, "count": 2}, "index=2; give 0 to 1"),
        ({"index": -1}, "index=-1"),
        ({"count": 0}, "count=0"),
        ({"repeats": 2**30}, r"2\*\*31 or more"),
        ({"batch": 11, "drop_last": True}, "batch=11 with drop_last is more than an epoch"),
        ({"where": np.ones(4, bool), "drop_last": True}, "drop_last with where"),
        ({"where": np.ones(3, bool)}, r"where is bool\[3\]; give a bool for each of the 4 rows"),
        ({"where": np.ones(4, np.int32)}, r"where is int32"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        next_batch(make_cursor(0), table(10), **({"batch": 4} | options))


def test_tables_that_are_none() -> None:
    rows = table(3)
    with pytest.raises(ValueError, match="leading axis of rows"):
        next_batch(make_cursor(0), take_rows(rows, 0), 2)
    with pytest.raises(ValueError, match="has no rows"):
        next_batch(make_cursor(0), jax.tree.map(lambda x: x[:0], rows), 2)
    short = dataclasses.replace(rows, turn_limit=rows.turn_limit[:2])
    with pytest.raises(ValueError, match=r"turn_limit has shape \(2,\)"):
        next_batch(make_cursor(0), short, 2)


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_epochs_that_cannot_be(number: Any) -> None:
    with pytest.raises(ValueError, match=f"num_epochs={number}"):
        make_cursor(0, num_epochs=number)


@pytest.mark.parametrize("key", ["a", None, 1.0, True, np.zeros(3, np.float32)])
def test_keys_that_are_none(key: Any) -> None:
    with pytest.raises(TypeError, match="key is"):
        make_cursor(key)


def test_negative_seed() -> None:
    with pytest.raises(ValueError, match="key=-1"):
        make_cursor(-1)


def test_keys_of_all_kinds() -> None:
    keys = [0, 1, 2**40, np.int64(7), jax.random.key(0), jax.random.PRNGKey(3)]
    assert len({np.asarray(make_cursor(key).key).tobytes() for key in keys}) == len(keys)
    chex.assert_trees_all_equal(make_cursor(jax.random.key(0)), jax.jit(make_cursor)(jax.random.key(0)))
