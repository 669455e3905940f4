"""Streams: the batches of a table, row for row; they end, they resume, they say what is wrong, they stop."""

import contextlib
import gc
import itertools
import json
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import chex
import datasets
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statelesschat as sc
from statelesschat.data import from_iterable, make_cursor, stream
from tests.data.make import codec, drawn, reset

LONG = "x" * 60


def rows(count: int) -> list[dict[str, Any]]:
    return [{"prompt": "q" * (1 + i % 5), "gold": i} for i in range(count)]


def same_rows(one: sc.ChatData, two: sc.ChatData, valid: Any) -> None:
    """What is valid is equal: ids up to the length, messages that there are, and all the rest."""
    for a, b in zip(*(jax.tree.leaves(data.info) for data in (one, two)), strict=True):
        assert (np.asarray(a)[valid] == np.asarray(b)[valid]).all()
    assert (np.asarray(one.turn_limit) == np.asarray(two.turn_limit)).all()
    assert (np.asarray(one.length)[valid] == np.asarray(two.length)[valid]).all()
    messages = min(one.table.shape[1], two.table.shape[1])
    assert (np.asarray(one.table)[valid, :messages] == np.asarray(two.table)[valid, :messages]).all()
    for row in np.flatnonzero(valid):
        length = int(one.length[row])
        assert (np.asarray(one.tokens)[row, :length] == np.asarray(two.tokens)[row, :length]).all()


@given(
    st.sampled_from([1, 5, 8]), st.sampled_from([3, 4]), st.sampled_from([1, 3]), st.sampled_from([1, 3]), st.booleans()
)
def test_equals_drawing_from_the_table(count: int, batch: int, repeats: int, shards: int, drop_last: bool) -> None:
    table = from_iterable(rows(count), codec(), info=["gold"], width=32)
    for index in range(min(shards, count)):
        options = {"drop_last": drop_last, "index": index, "count": shards}
        if drop_last and count // shards * repeats < batch:
            continue
        cursor = make_cursor(0, num_epochs=1)
        with stream(rows(count), codec(), batch, repeats, info=["gold"], width=32, **options) as batches:
            for data, valid in batches:
                cursor, expected, ok = drawn(cursor, table, batch, repeats, shuffle=False, **options)
                assert (np.asarray(valid) == np.asarray(ok)).all()
                same_rows(data, expected, np.asarray(valid))
        assert bool(cursor.exhausted)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings of rows left out do not matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def everything(batches: Any) -> list[Any]:
    return [jax.tree.map(np.asarray, one) for one in batches]


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(0, 6))
def test_a_stream_resumes_exactly(count: int, batch: int, repeats: int, shards: int, stop: int) -> None:
    source = [{"turns": ["a", "b"][: 1 + i % 2], "x": 0.5 if i == 0 else i} for i in range(count)]
    long = max(1, count // 2)
    source.insert(long, {"prompt": LONG, "x": 3})
    options: dict[str, Any] = {"info": ["x"], "on_long": "drop", "count": shards, "index": 0}
    with pytest.warns(UserWarning, match="too long") if long % shards == 0 else quiet():
        whole = everything(stream(iter(source), codec(), batch, repeats, **options))
    first = stream(iter(source), codec(), batch, repeats, **options)
    with first, quiet():
        head = everything(itertools.islice(first, stop))
        state = json.loads(json.dumps(first.state()))
    with quiet():
        rest = everything(stream(lambda: iter(source), codec(), batch, repeats, state=state, **options))
    assert len(head) + len(rest) == len(whole)
    for one, two in zip(whole, head + rest, strict=True):
        chex.assert_trees_all_equal(one, two)


def test_on_the_device_with_one_trace() -> None:
    count = chex.assert_max_traces(lambda data, valid: data.length.sum() + valid.sum(), n=1)
    total = jax.jit(count)
    with stream((f"{'q' * (i % 9)}?" for i in range(10)), codec(), 4, 2) as batches:
        with jax.transfer_guard("disallow"):
            sums = [total(*one) for one in batches]
    assert len(sums) == 5
    assert all(isinstance(leaf, jax.Array) for leaf in sums)


def test_a_one_shot_iterator_ends_and_stays_at_its_end() -> None:
    batches = stream(iter(["a", "b", "c"]), codec(), 2)
    assert len(list(batches)) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(batches)
    assert list(batches) == []


def test_iterable_dataset() -> None:
    source = datasets.Dataset.from_dict({"question": ["one", "two", "three"], "gold": [1, 2, 3]}).to_iterable_dataset()
    options: dict[str, Any] = {"columns": {"prompt": "question"}, "info": ["gold"]}
    with stream(source, codec(), 2, **options) as batches:
        next(batches)
        state = batches.state()
        assert state["row"] == 2
    with stream(source, codec(), 2, state=state, **options) as batches:
        ((data, valid),) = batches
    assert data.info.task["gold"].tolist()[0] == 3
    assert valid.tolist() == [True, False]


def test_padding_as_drawn() -> None:
    ((data, valid),) = stream(["a"], codec(), 3, 2)
    assert valid.tolist() == [True, True, False]
    assert data.turn_limit.tolist() == [4, 4, 0]
    for ids in (data.info.row_id, data.info.group_id, data.info.repeat_id):
        assert int(ids[-1]) == -1
    states = reset(sc.init(codec().config), data)
    assert states.done.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ([], {}, "the source is empty"),
        (iter([]), {"drop_last": True}, "the source is empty"),
        ([LONG] * 3, {"on_long": "drop"}, "3 rows are too long .* which leaves none"),
        (["a"], {"drop_last": True}, "batch=2 with drop_last is more than the whole source, 1 rows"),
        ([LONG], {}, r"1 row is too long \(row 0: the prompt takes"),
        ([5], {}, "row 0: a row is a string"),
        (lambda: 5, {}, "the source's function returned a int"),
        (["a"], {"collate": lambda rows: np.zeros(5)}, "its leading axis must be the 1 rows"),
    ],
)
def test_said_at_the_first_batch(source: Any, options: dict[str, Any], said: str) -> None:
    with stream(source, codec(), 2, **options) as batches:
        with pytest.raises((ValueError, TypeError), match=said):
            next(batches)
        assert list(batches) == []


def test_a_wrong_row_is_told_in_its_place() -> None:
    with stream(["a", "b", "c", {"promt": "d"}], codec(), 2) as batches:
        next(batches)
        with pytest.raises(ValueError, match="row 3: no column"):
            next(batches)
        assert batches.state()["row"] == 2, "where it can go on once the row is mended"


def test_a_fault_of_the_source_comes_through() -> None:
    def source() -> Iterator[str]:
        yield "a"
        yield "b"
        raise OSError("the network is gone")

    with stream(source(), codec(), 1) as batches:
        assert len(list(itertools.islice(batches, 2))) == 2
        with pytest.raises(OSError, match="the network is gone"):
            next(batches)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"prompt": "a", "g": 2.5}, "row 2: g here is float64, in earlier rows int32"),
        ({"prompt": "a", "g": True}, "row 2: g here is bool, in earlier rows int32"),
        ({"prompt": "a", "g": [1]}, r"row 2: g has shape \[1\], in rows before \[\]"),
        ({"turns": ["a", "b"], "g": 1}, "row 2 or one soon after it is given as turns"),
    ],
)
def test_later_rows_of_another_kind(last: Any, said: str) -> None:
    with stream([{"prompt": "a", "g": 1}] * 2 + [last], codec(), 2, info=["g"]) as batches:
        next(batches)
        with pytest.raises((ValueError, TypeError), match=said):
            next(batches)


def test_whole_numbers_in_a_column_of_floats() -> None:
    with stream([{"prompt": "a", "g": g} for g in (0.5, 1, 2)], codec(), 1, info=["g"]) as batches:
        assert [float(data.info.task["g"][0]) for data, _ in batches] == [0.5, 1, 2]


def test_rows_left_out_are_told_once_and_counted() -> None:
    source = ["a", LONG, "b", LONG, "c", LONG]
    with stream(source, codec(), 1, on_long="drop") as batches:
        next(batches)
        with pytest.warns(UserWarning, match=r"1 row is too long \(row 1: .*left out") as told:
            data, _ = next(batches)
        assert told[0].filename == __file__
        assert (int(data.info.row_id[0]), int(data.info.group_id[0])) == (2, 1)
        assert len(list(batches)) == 1
        assert batches.left_out == 3
    with pytest.warns(UserWarning, match="row 1: "), stream(["a", LONG], codec(), 1, on_long="drop") as batches:
        assert len(list(batches)) == 1


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def wait_for_no_threads() -> None:
    end = time.monotonic() + 20
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not threads()


def test_closing_stops_the_thread() -> None:
    wait_for_no_threads()
    batches = stream((str(i) for i in itertools.count()), codec(), 2)
    next(batches)
    assert threads()
    batches.close()
    batches.close()
    assert not threads()
    assert list(batches) == []


def test_forgetting_a_stream_stops_the_thread() -> None:
    batches = stream((str(i) for i in itertools.count()), codec(), 2)
    next(batches)
    del batches
    gc.collect()
    wait_for_no_threads()


def test_closing_ends_a_search_that_would_never_end() -> None:
    batches = stream(itertools.repeat(LONG), codec(), 2, on_long="drop")
    batches.close()
    wait_for_no_threads()


def test_no_more_is_read_ahead_than_asked() -> None:
    read = []

    def source() -> Iterator[str]:
        for i in itertools.count():
            read.append(i)
            yield str(i)

    with stream(source(), codec(), 1, prefetch=2) as batches:
        next(batches)
        time.sleep(0.3)
        assert len(read) <= 4
        assert batches.state()["row"] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch=0"),
        ({"repeats": 1.5}, "repeats=1.5"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"index": 2, "count": 2}, "index=2; give 0 to 1"),
        ({"limit": 0}, "limit=0"),
        ({"on_long": "cut"}, "on_long='cut'"),
        ({"source": "openai/gsm8k"}, "source is a str; .*streaming=True"),
        ({"source": 5}, "source is a int"),
        ({"codec": None}, "codec is a NoneType"),
        ({"state": {"row": 1}}, "is no state of a stream"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        stream(**({"source": ["a"], "codec": codec(), "batch": 2} | options))


def test_a_state_of_another_stream() -> None:
    with stream(rows(5), codec(), 2, info=["gold"]) as batches:
        next(batches)
        state = batches.state()
    for options, said in (
        ({"repeats": 2, "info": ["gold"]}, "repeats=2, but the state was made with repeats=1"),
        ({"index": 1, "count": 2, "info": ["gold"]}, "index=1, but"),
        ({}, "info="),
    ):
        with pytest.raises(ValueError, match=said):
            stream(rows(5), codec(), 2, state=state, **options)
    with pytest.raises(ValueError, match="state has format 9"):
        stream(rows(5), codec(), 2, state=state | {"format": 9})
    with stream(rows(1), codec(), 2, info=["gold"], state=state) as batches:
        with pytest.raises(ValueError, match="the source has 1 rows, the state stands at row 2"):
            next(batches)


def test_limit() -> None:
    with stream((str(i) for i in itertools.count()), codec(), 2, limit=3) as batches:
        assert [valid.tolist() for _, valid in batches] == [[True, True], [True, False]]
