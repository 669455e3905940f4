"""Sources: what a row may be, what becomes of it, and what is said of one that cannot be."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import statelesschat as sc
from statelesschat.core.types import Column, Header
from statelesschat.data import from_iterable, from_jsonl, take_rows
from statelesschat.data import progress as progress_module
from tests.data.make import codec, quickly, reset

HISTORY = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
LONG = "x" * 60


def texts(table: sc.ChatData) -> list[str]:
    tokenizer = codec().tokenizer
    rows = zip(np.asarray(table.tokens), np.asarray(table.length))
    return [tokenizer.decode(tokens[:length]) for tokens, length in rows]


def script_texts(table: sc.ChatData) -> list[list[str]]:
    script = jax.tree.map(np.asarray, table.info.script)
    found = []
    for row in range(len(table.length)):
        there = script.length[row] > 0
        blocks = sc.Message(script.tokens[row, there], script.length[row, there], script.header[row, there])
        found.append([m["content"] for m in codec().decode_messages(blocks)] if there.any() else [])
    return found


def test_rows_of_all_kinds() -> None:
    ids = codec().encode(["ids"])
    raw = np.asarray(ids.tokens)[0, : int(ids.length[0])].tolist()
    rows = ["one", HISTORY, {"prompt": "two"}, {"messages": HISTORY}, {"query": "three"}, {"prompt_ids": raw}]
    table = from_iterable(rows, codec())
    expected = codec().encode([*rows])
    assert texts(table) == texts(expected)
    for row, length in enumerate(np.asarray(expected.length)):
        assert (np.asarray(table.tokens)[row, :length] == np.asarray(expected.tokens)[row, :length]).all()
    width = int(np.asarray(expected.length).max())
    assert table.tokens.shape == (6, width), "as wide as the longest prompt"
    assert table.table.shape == (6, 3, len(Column)), "as many messages as the longest history"
    assert (np.asarray(table.table) == np.asarray(expected.table)[:, :3]).all()
    assert np.asarray(table.info.row_id).tolist() == list(range(6))
    assert np.asarray(table.turn_limit).tolist() == [4] * 6
    assert table.info.task is None
    assert table.info.script is None
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(table))


def test_a_table_starts_conversations() -> None:
    table = from_iterable(["one", HISTORY], codec())
    states = reset(sc.init(codec().config, take_rows(table, 0)), table)
    assert [[m["content"] for m in h] for h in codec().decode_history(states)] == [["one"], ["a", "b", "c"]]


def test_columns_map_and_info() -> None:
    rows = [
        {"question": f"{i}?", "messages": "not a history", "gold": i, "weight": 1, "pair": [i, i + 1], "easy": i > 0}
        for i in range(3)
    ]
    rows[1]["weight"] = 0.5
    table = from_iterable(
        rows,
        codec(),
        columns={"prompt": "asked", "answer": "gold"},
        map=lambda row: row | {"asked": f"What is {row['question']}", "turn_limit": 2},
        info=["answer", "weight", "pair", "easy"],
    )
    assert "What is 1?" in texts(table)[1]
    task = table.info.task
    assert {name: (str(a.dtype), a.shape) for name, a in task.items()} == {
        "answer": ("int32", (3,)), "weight": ("float32", (3,)), "pair": ("int32", (3, 2)), "easy": ("bool", (3,)),
    }  # fmt: skip
    assert task["weight"].tolist() == [1, 0.5, 1]
    assert task["pair"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert table.turn_limit.tolist() == [2, 2, 2]


def test_whole_numbers_become_floats_where_any_row_has_one() -> None:
    rows = [{"prompt": "a", "x": 1}] * 1030 + [{"prompt": "b", "x": 2.5}]
    table = from_iterable(rows, codec(), info="x")
    assert table.info.task["x"].dtype == np.float32
    assert table.info.task["x"][-1] == 2.5


def test_collate_is_asked_chunk_by_chunk() -> None:
    sizes = []

    def collate(rows: list[dict[str, Any]]) -> Any:
        sizes.append(len(rows))
        return {"gold": np.asarray([len(row["answer"]) for row in rows]), "bytes": np.zeros((len(rows), 4), np.uint8)}

    table = from_iterable(({"prompt": "q", "answer": "a" * (i % 7)} for i in range(1500)), codec(), collate=collate)
    assert sizes == [1024, 476]
    assert table.info.task["gold"].tolist() == [i % 7 for i in range(1500)]
    assert table.info.task["bytes"].dtype == np.uint8


def test_later_turns_become_a_script() -> None:
    rows = [{"turns": ["first", "second", "third"]}, {"turns": ["only"]}, {"turns": ["one", "two"], "turn_limit": 2}]
    table = from_iterable(rows, codec())
    script = table.info.script
    assert script.tokens.shape[:2] == (3, 2)
    assert script_texts(table) == [["second", "third"], [], ["two"]]
    assert (np.asarray(script.length) > 0).tolist() == [[True, True], [False, False], [True, False]]
    assert (np.asarray(script.header)[np.asarray(script.length) == 0] == -1).all()
    assert np.asarray(script.header)[0, 0, Header.KIND] == sc.Role.USER
    mixed = from_iterable(["no turns", rows[0]], codec())
    assert script_texts(mixed) == [[], ["second", "third"]]
    single = from_iterable([{"turns": ["only"]}], codec())
    assert single.info.script.length.tolist() == [[0]], "the structure does not depend on how many turns rows have"


def test_a_script_can_be_appended() -> None:
    table = from_iterable([{"turns": ["first", "second"]}], codec())
    states = reset(sc.init(codec().config, take_rows(table, 0)), table)
    states = quickly(jax.vmap(sc.step))(states, codec().encode_actions(["ok"]))
    states = quickly(jax.vmap(sc.append))(states, jax.tree.map(lambda x: x[:, 0], table.info.script))
    assert not bool(states.done[0])
    assert [m["content"] for m in codec().decode_history(states)[0]] == ["first", "ok", "second"]


def test_limit_and_width() -> None:
    table = from_iterable((f"{i}" for i in range(100)), codec(), limit=7, width=64)
    assert table.tokens.shape == (7, 64)


def test_rows_that_are_too_long_are_named_all_at_once() -> None:
    rows = ["ok", LONG, {"turns": ["a", "b", LONG]}, HISTORY * 4, {"turns": list("abcde")}, "ok"]
    with pytest.raises(ValueError) as caught:
        from_iterable(rows, codec())
    said = str(caught.value)
    for part in (
        "4 rows are too long", "row 1: the prompt takes", "more than max_prompt_len=64", "row 2: turn 3: the message",
        "more than max_message_len=48", "row 3: 12 messages and an answer are more than max_messages=8",
        "row 4: 5 turns are more than max_turns=4", "on_long='drop'",
    ):  # fmt: skip
        assert part in said
    with pytest.warns(UserWarning, match=re.escape("4 rows are too long (row")) as told:
        table = from_iterable(rows, codec(), on_long="drop")
    assert told[0].filename == __file__
    assert table.info.row_id.tolist() == [0, 5], "ids count the rows left out"
    assert table.info.group_id.tolist() == [0, 1]


def test_many_long_rows_are_counted() -> None:
    with pytest.raises(ValueError, match=r"^30 rows are too long \(row 0: .*; and 20 more\) of 31"):
        from_iterable([LONG] * 30 + ["ok"], codec())
    with pytest.raises(ValueError, match="which leaves none; raise the limit"):
        from_iterable([LONG] * 30, codec(), on_long="drop")
    with pytest.raises(ValueError, match="more than width=20"):
        from_iterable(["some words"], codec(), width=20)


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([], {}, "the source is empty; give at least one row"),
        (["a", 5], {}, "row 1: a row is a string, a list of messages or a dict, not a int"),
        (["a", None], {}, "row 1: a row is"),
        (["a", [5]], {}, "row 1: message 0 is a int"),
        ([[]], {}, "row 0: the history is empty"),
        ([[{"role": "king", "content": "x"}]], {}, "row 0: message 0: .*king"),
        (HISTORY, {}, "row 0: this is a message, and a row is a list of messages; give \\[history\\]"),
        ([{"question": "a", "id": 1}], {}, "row 0: no column messages, prompt.* there are question, id. Say which"),
        (
            [{"a": 1}],
            {"columns": {"prompt": "q"}},
            r"row 0: no column 'q', which columns\['prompt'\] names; there are a",
        ),
        ([{"prompt": "x"}] * 2 + [{"prompt": None}], {}, "row 2: no column"),
        ([{"q": None}], {"columns": {"prompt": "q"}}, "row 0: prompt is None"),
        ([{"q": 5}], {"columns": {"prompt": "q"}}, "row 0: a prompt is a string or a list of messages, not a int"),
        ([{"prompt_ids": [1, 999]}], {}, "row 0: id 999 is outside the vocabulary of 259 ids"),
        ([{"prompt_ids": [1.5]}], {}, "row 0: token ids must be"),
        ([{"prompt": "a", "turns": ["b"]}], {}, "row 0: columns prompt and turns may both be the prompt"),
        ([{"turns": "abc"}], {}, "row 0: turns is 'abc'; give a list"),
        ([{"turns": []}], {}, r"row 0: turns is \[\]"),
        ([{"turns": ["a", 3]}], {}, "row 0: turns is"),
        (["a", {"prompt": "b", "turn_limit": 9}], {}, "row 1: turn_limit=9; give 1 to max_turns=4"),
        ([{"prompt": "b", "turn_limit": "2"}], {}, "row 0: turn_limit='2'"),
        ([{"prompt": "b"}], {"info": ["gold"]}, "row 0: no column 'gold', which info names; there are prompt"),
        ([{"prompt": "b", "g": "4"}], {"info": ["g"]}, "row 0: g is '4', a str; give a number"),
        ([{"prompt": "b", "g": None}], {"info": ["g"]}, "row 0: g is None"),
        ([{"prompt": "b", "g": [[1], [1, 2]]}], {"info": ["g"]}, "row 0: g is"),
        (
            [{"prompt": "b", "g": i} for i in ([1], [1, 2])],
            {"info": ["g"]},
            r"row 1: g has shape \[2\], in rows",
        ),
        ([{"prompt": "b", "g": i} for i in (1, True)], {"info": ["g"]}, "row 1: g is a bool in some rows"),
        ([{"prompt": "b", "g": 2**31}], {"info": ["g"]}, "row 0: g is 2147483648, outside int32"),
        ([{"prompt": "b", "g": 2**64 - 1}], {"info": ["g"]}, "row 0: g is 18446744073709551615, outside int32"),
        ([{"prompt": "b", "g": 2**80}], {"info": ["g"]}, "row 0: g is 1208925819614629174706176, outside int32"),
        ([{"prompt": "b", "g": 1e39}], {"info": ["g"]}, "row 0: g is 1e.39, outside float32"),
        (["a"], {"map": lambda row: row}, "row 0: map returned a str; it must return a dict"),
        (["a"], {"map": lambda row: row["x"]}, "row 0: map raised TypeError: string indices"),
        (["a"], {"collate": lambda rows: None}, "collate, for rows 0 to 0: returned None; return arrays"),
        (["a"], {"collate": lambda rows: rows[3]}, "collate, for rows 0 to 0: raised IndexError"),
        (["a"], {"collate": lambda rows: {"x": np.zeros(3)}}, r"returned\['x'\] has shape \(3,\); its leading axis"),
        (["a"], {"collate": lambda rows: {"x": ["text"]}}, r"returned\['x'\] is <U4"),
        (["a"], {"collate": lambda rows: np.asarray([2**40])}, "numbers outside int32"),
        (["a"], {"collate": lambda rows: np.asarray([1e300])}, "numbers outside float32"),
        (["a"], {"on_long": "cut"}, "on_long='cut'; give 'error' or 'drop'"),
        (["a"], {"width": 65}, "width=65; give 1 to max_prompt_len=64"),
        (["a"], {"limit": 0}, "limit=0; give a whole number"),
        (["a"], {"info": ["x"], "collate": len}, "info and collate"),
        (["a"], {"info": ["x", "x"]}, "each once"),
        (["a"], {"columns": {"promt": "x"}}, "columns names promt, which nothing reads; our names.* prompt"),
        (["a"], {"columns": {"prompt": "x", "messages": "y"}}, "gives the prompt under prompt and messages"),
        (["a"], {"columns": ["prompt"]}, "give a dict of our names"),
        (["a"], {"map": 5}, "map is a int; give a function"),
        ("abc", {}, "not as one str"),
        ({"prompt": "a"}, {}, "not as one dict"),
        ({"a"}, {}, "not as one set"),
        (5, {}, "not as a int"),
    ],
)
def test_what_cannot_be(rows: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        from_iterable(rows, codec(), **options)


def test_chunks_that_disagree() -> None:
    def rows(last: Any) -> list[Any]:
        return [{"prompt": "a", "g": 1}] * 1030 + [{"prompt": "b", "g": last}]

    mixed = [{"prompt": "a", "g": 1}] * 1024 + [{"prompt": "b", "g": True}]
    with pytest.raises(TypeError, match="row 1024: g is a bool in some rows"):
        from_iterable(mixed, codec(), info=["g"])
    wide = [{"prompt": "a", "g": 1}] * 1024 + [{"prompt": "b", "g": [1]}]
    with pytest.raises(ValueError, match=r"row 1024: g has shape \[1\]"):
        from_iterable(wide, codec(), info=["g"])
    with pytest.raises(ValueError, match=r"collate returned as int32\[3\] for the first rows and int32\[2\] for later"):
        from_iterable(rows(0), codec(), collate=lambda r: np.zeros((len(r), 3 if len(r) > 1000 else 2), np.int32))
    with pytest.raises(ValueError, match="return the same structure for all"):
        from_iterable(rows(0), codec(), collate=lambda r: {str(len(r)): np.zeros(len(r))})
    with pytest.raises(ValueError, match="row 1030: g is 4294967296, outside int32"):
        from_iterable(rows(2**32), codec(), info=["g"])


def test_no_codec() -> None:
    with pytest.raises(TypeError, match=r"codec is a ChatConfig; give Codec\(tokenizer, config\)"):
        from_iterable(["a"], codec().config)  # type: ignore[arg-type]


def test_a_fault_of_the_source_comes_through() -> None:
    def rows() -> Any:
        yield "a"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        from_iterable(rows(), codec())


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "one", "gold": 1}, {"prompt": "two", "gold": 2}]
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    table = from_jsonl(path, codec(), info=["gold"])
    assert table.info.task["gold"].tolist() == [1, 2]
    assert table.info.row_id.tolist() == [0, 1]
    path.write_text(json.dumps(rows, indent=1))
    assert from_jsonl(str(path), codec()).length.tolist() == table.length.tolist()
    path.write_text('"a prompt"\n' + json.dumps(HISTORY))
    assert len(from_jsonl(path, codec()).length) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rows.jsonl: the source is empty"),
        ("\n \n", "rows.jsonl: the source is empty"),
        ("[]", "rows.jsonl: the source is empty"),
        ('{"prompt": "a"}\n{"prompt": \n', "rows.jsonl:2: not JSON"),
        ('{"prompt": "a"}\n\n{"promt": "b"}\n', "rows.jsonl:3: row 1: no column .* there are promt"),
        ('{"prompt": "a"}\n\n{"prompt": 7}\n', "rows.jsonl:3: row 1: a prompt is a string"),
        (
            f'{{"prompt": "a"}}\n{{"prompt": "{LONG}"}}\n',
            r"1 row is too long \(.*rows.jsonl:2: row 1: the prompt",
        ),
        ('{"prompt": "a", "turn_limit": true}', "rows.jsonl:1: row 0: turn_limit=True"),
    ],
)
def test_jsonl_that_cannot_be(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises((ValueError, TypeError), match=said):
        from_jsonl(path, codec())


def test_jsonl_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no/such.jsonl: cannot be read"):
        from_jsonl("no/such.jsonl", codec())


def test_a_bar_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress_module, "_FEW", 3)
    from_iterable(["a"] * 5, codec())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    for rows in (["a"] * 5, iter(["a"] * 5)):
        from_iterable(rows, codec())
        assert "encoding rows" in capsys.readouterr().err
    from_iterable(["a"] * 5, codec(), progress=False)
    from_iterable(["a"] * 2, codec())
    assert capsys.readouterr().err == ""


def test_nothing_is_warned_of_when_all_fits() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_iterable(["a"], codec(), on_long="drop")
