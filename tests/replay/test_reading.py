"""Conversations and answers from files: every shape that is read, and every fault with its place."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from statelesschat import Role
from statelesschat.replay.reading import Record, answer_records, read_answers, read_conversations, records_of
from statelesschat.text.jsonfile import InputError, parse, read_text

S, U, A, T = (int(role) for role in Role)


def _file(tmp_path, content, name="x.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def _lines(*values):
    return "\n".join(json.dumps(value) for value in values)


@pytest.mark.parametrize(
    ("line", "kinds", "contents"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, (U,), ("a",)),
        ({"messages": [{"role": "system", "content": ""}, {"role": "tool", "content": "r"}]}, (S, T), ("", "r")),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, (U,), ("a",)),
        ({"prompt": "a"}, (U,), ("a",)),
        ({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, (U, A), ("a", "b")),
        ({"question": "a"}, (U,), ("a",)),
        ({"question": "a", "answer": " "}, (U, A), ("a", " ")),
        ({"question": "a", "solution": "b", "gold": "c"}, (U, A), ("a", "b")),
        ({"question": "a", "answer": "b", "solution": "c"}, (U, A), ("a", "b")),
        ({"messages": None, "question": "a", "answer": None}, (U,), ("a",)),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}], (U, A), ("a", "")),
    ],
)
def test_shapes_of_a_conversation(line, kinds, contents):
    assert records_of(_lines(line, {"prompt": "another"}), "x")[0] == Record(1, None, kinds, contents)


def test_turns_wait_for_their_answers():
    (record,) = records_of(_lines({"question_id": 81, "turns": ["a", "b", "c"]}), "x")
    assert record == Record(1, "81", (U,), ("a",), ("b", "c"))


@pytest.mark.parametrize(
    ("kinds", "prompt"),
    [((U, A), 1), ((S, U, A, U, A), 2), ((A, U, A), 2), ((A, A, U, U), 4), ((S, A, U, A), 1), ((U, U, T), 3)],
)
def test_the_prompt_ends_before_the_first_answer(kinds, prompt):
    assert Record(1, None, kinds, ("",) * len(kinds)).prompt == prompt


def test_line_numbers_count_blank_lines_and_crlf():
    text = '\r\n{"prompt": "a"}\r\n \r\n\r\n{"prompt": "b\u2028c"}\r\n'
    assert [(r.line, r.contents) for r in records_of(text, "x")] == [(2, ("a",)), (5, ("b\u2028c",))]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('[{"prompt": "a"}, {"prompt": "b"}]', [1, 1]),
        ('\n[\n  {"prompt":\n "a"},\n\n  {"prompt": "b"}\n]\n', [3, 6]),
        ('{\n "prompt": "a"\n}', [1]),
        ('[\n{"role": "user", "content": "a"}\n]', [1]),
        ('[{"role": "user", "content": "a"}]\n[{"role": "user", "content": "b"}]', [1, 2]),
    ],
)
def test_json_documents(text, lines):
    assert [record.line for record in records_of(text, "x")] == lines


def test_files_with_a_byte_order_mark_and_standard_input(tmp_path, monkeypatch):
    content = b'\xef\xbb\xbf{"prompt": "\xc3\xa9"}'
    assert read_conversations(_file(tmp_path, content))[0].contents == ("é",)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert read_conversations("-")[0].contents == ("é",)


@pytest.mark.parametrize(
    ("content", "line", "told"),
    [
        ("", None, "no conversations"),
        (" \n\n", None, "no conversations"),
        ("[]", None, "no conversations"),
        ("hello", 1, "not JSON"),
        ('{"prompt": "a"}\n\n{"prompt": "b"', 3, "not JSON"),
        ('{"prompt": "a"\n{"prompt": "b"}', 1, "not JSON"),
        ('{\n"prompt": "a",\n"x": y\n}', 3, "not JSON"),
        ('{"prompt": "a"}\n' + "[" * 100_000, 2, "not JSON"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', 2, "not UTF-8"),
        (b"\xef\xbb\xbf\n\n\xff", 3, "not UTF-8"),
        ('{"prompt": "a"}'.encode("utf-16"), 1, "UTF-16"),
        ('{"prompt": "a"}\n3', 2, "not a number"),
        ('{"prompt": "a"}\nnull', 2, "not null"),
        ('{"prompt": "a"}\n"b"', 2, "not a text"),
        ("{}", 1, "among none"),
        ('{"text": "a"}', 1, "'text'"),
        ('{"messages": []}', 1, "an empty list"),
        ('{"messages": "a"}', 1, "a text"),
        ('{"messages": ["a"]}', 1, "message 0"),
        ('{"messages": [{"role": "user"}]}', 1, "content is None"),
        ('{"messages": [{"role": "user", "content": 3}]}', 1, "message 0"),
        ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', 1, "only text"),
        ('{"messages": [{"role": "bot", "content": "a"}]}', 1, "unknown role 'bot'"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', 1, "surrogate"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', 1, "the assistant's"),
        (_lines([dict(role=r, content="") for r in ("user", "assistant", "assistant")], {"prompt": ""}), 1, "join"),
        ('{"turns": []}', 1, "an empty list"),
        ('{"turns": ["a", null]}', 1, "text 1 of turns is null"),
        ('{"turns": [{"role": "user", "content": "a"}]}', 1, "an object"),
        ('{"prompt": 5}', 1, "a number"),
        ('{"question": "a", "answer": 5}', 1, "the answer is a number"),
        ('{"question": ["a"]}', 1, "question is a list"),
    ],
)
def test_faults_name_the_line(tmp_path, content, line, told):
    path = _file(tmp_path, content)
    with pytest.raises(InputError) as error:
        read_conversations(path)
    message = str(error.value)
    assert message.startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert told in message and "\n" not in message


def test_what_cannot_be_read(tmp_path):
    for path in (tmp_path, tmp_path / "absent", "nul\0byte"):
        with pytest.raises(InputError, match="cannot be read"):
            read_text(str(path))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a", (None, ("a",))),
        (["a", "b"], (None, ("a", "b"))),
        (None, (None, ())),
        ({"id": 7, "answers": ["a", ""]}, ("7", ("a", ""))),
        ({"question_id": "q", "turns": ["a"]}, ("q", ("a",))),
        ({"answer": "a"}, (None, ("a",))),
        ({"solution": "a"}, (None, ("a",))),
        ({"choices": [{"index": 0, "turns": ["a", "b"]}]}, (None, ("a", "b"))),
        ({"choices": [{"message": {"role": "assistant", "content": "a"}}]}, (None, ("a",))),
    ],
)
def test_shapes_of_answers(tmp_path, line, expected):
    assert read_answers(_file(tmp_path, _lines(line, "x")))[0] == (*expected, 1)


@pytest.mark.parametrize("line", [{"text": "a"}, 3, {"choices": []}, {"choices": [{}]}, {"answer": 3}, ["a", 3]])
def test_faulty_answers_name_the_line(tmp_path, line):
    path = _file(tmp_path, _lines("a", line))
    with pytest.raises(InputError, match="x.jsonl:2: "):
        read_answers(path)


def _questions():
    return records_of(_lines({"id": 1, "turns": ["a", "b", "c"]}, {"id": 2, "question": "d"}), "x")


def test_answers_in_order_fill_the_turns(tmp_path):
    one, two = answer_records(_questions(), _file(tmp_path, _lines(["A", "B"], None)))
    assert one == Record(1, "1", (U, A, U, A, U), ("a", "A", "b", "B", "c"), ())
    assert two == _questions()[1]


def test_answers_by_id(tmp_path):
    answers = _file(tmp_path, _lines({"question_id": 2, "answer": "D"}, {"question_id": 9, "answer": "?"}))
    one, two = answer_records(_questions(), answers)
    assert (one.contents, two.contents) == (("a",), ("d", "D"))


def test_conversations_with_answers_of_their_own_keep_them(tmp_path):
    records = records_of(_lines({"question": "a", "answer": "b"}, {"prompt": "c"}), "x")
    one, two = answer_records(records, _file(tmp_path, _lines("x", "y")))
    assert (one.contents, two.contents) == (("a", "b"), ("c", "y"))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["a"], "1 lines for 2 conversations"),
        (["a", ["b", "c"]], "2: 2 answers for a conversation with 1 user turns"),
        ([{"id": 1, "answer": "a"}, {"id": 1, "answer": "b"}], "2: id 1 stands on line 1"),
        ([{"id": 8, "answer": "a"}, {"id": 9, "answer": "b"}], "none of its ids"),
    ],
)
def test_answers_that_do_not_fit_the_conversations(tmp_path, lines, told):
    with pytest.raises(InputError, match=told):
        answer_records(_questions(), _file(tmp_path, _lines(*lines)))


def test_elements_of_an_array_know_their_lines():
    assert [item.line for item in parse("[1,\n[2,\n3], {\n}\n,4]", "x")] == [1, 2, 3, 5]
