"""Stored answers scored again: the same verdict whatever form they come in, and every fault named by its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import statelesschat as sc
from statelesschat.__main__ import app
from statelesschat.host import GraderPool, math_reward
from statelesschat.scoring import score
from statelesschat.tasks import graded, math

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k_model_solutions_1200.jsonl"
ROWS = [
    {"question": "Two hats at $9 each?", "gold": "18", "said": "9 + 9 = 18\n#### $18.00", "is_correct": True},
    {"question": "Half of 7?", "answer": "7/2\n#### 3.5", "said": r"It is \boxed{\frac{7}{2}}.", "is_correct": True},
    {"question": "Below 0?", "gold": "-3", "said": "A: 3", "is_correct": False},
    {"question": "Which?", "gold": "5", "said": "I cannot say.", "is_correct": False},
    {"question": "Ünïcode?", "gold": "70,000", "said": "Café: 70000 €", "is_correct": False},  # the label is wrong
]  # fmt: skip


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def without(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("said", "question")} | more


def forms(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The same conversations as text, as histories and as ids."""
    tokenizer = sc.load_tokenizer(None)
    ids = [tokenizer.encode(row["said"], add_special_tokens=False) for row in rows]
    asked = [{"role": "user", "content": row["question"]} for row in rows]
    said = [{"role": "assistant", "content": row["said"]} for row in rows]
    return {
        "text": [without(row, question=row["question"], response=row["said"]) for row in rows],
        "solution": [without(row, question=row["question"], solution=row["said"]) for row in rows],
        "history": [without(row, messages=[a, b]) for row, a, b in zip(rows, asked, said, strict=True)],
        "completion": [without(r, messages=[a], completion=[b]) for r, a, b in zip(rows, asked, said, strict=True)],
        "ids": [without(row, question=row["question"], response_ids=i) for row, i in zip(rows, ids, strict=True)],
        "all ids": [without(row, prompt_ids=[65, 66], question="", response_ids=[*i, 258])
                    for row, i in zip(rows, ids, strict=True)],
    }  # fmt: skip


def test_verdicts_are_the_same_whatever_form_the_answer_comes_in(tmp_path: Path) -> None:
    for name, rows in forms(ROWS).items():
        for row in rows:
            if row.get("question") == "":
                row["question"] = "?"
        found = score("gsm8k", written(tmp_path / "rows.jsonl", rows))
        assert [v.reward for v in found.verdicts] == [1, 1, 0, 0, 1], name
        assert found.agreement == 0.8 and found.mean_reward == 0.6
        assert [v.line for v in found.verdicts if v.agrees is False] == [5]


def test_json_is_one_object_with_the_figures(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", forms(ROWS)["text"])
    result = CliRunner().invoke(app, ["score", "gsm8k", path, "--json"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["mean_reward"] == 0.6 and found["agreement"] == 0.8
    assert found["rows"] == 5 and found["disagreements"] == [5] and found["failed"] == []
    assert found["verdicts"][1] == {
        "line": 2, "reward": 1.0, "status": "OK", "is_correct": True,
        "ends": r"It is \boxed{\frac{7}{2}}.", "detail": "",
    }  # fmt: skip
    unlabelled = written(
        tmp_path / "plain.jsonl", [{k: v for k, v in r.items() if k != "is_correct"} for r in forms(ROWS)["text"]]
    )
    found = json.loads(CliRunner().invoke(app, ["score", "gsm8k", unlabelled, "--json"]).stdout)
    assert "agreement" not in found and found["mean_reward"] == 0.6


def test_text_tells_each_row_and_sums_up(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", forms(ROWS)["text"])
    result = CliRunner().invoke(app, ["score", "gsm8k", path])
    lines = result.stdout.splitlines()
    assert "line      3  0.00  as labelled  A: 3" in lines
    assert "line      5  1.00  NOT as labelled  Café: 70000 €" in lines
    assert "80.00% (4 of 5)" in result.stdout and "not as labelled: line 5" in result.stderr
    wrong = CliRunner().invoke(app, ["score", "gsm8k", path, "--verdicts", "wrong"]).stdout
    assert "line      1" not in wrong and "line      5" in wrong


def test_the_other_tasks(tmp_path: Path) -> None:
    puzzles = [
        {"nums": [3, 3, 8, 8], "target": 24, "response": "<answer>8 / (3 - 8/3)</answer>"},
        {"nums": [3, 3, 8, 8], "target": 24, "response": "<answer>3 * 8</answer>"},
    ]
    assert [v.reward for v in score("countdown", written(tmp_path / "c.jsonl", puzzles)).verdicts] == [1, 0]
    sums = [
        {"question": "What is 2 - 5?", "answer": -3, "output": "-3"},
        {"question": "1+1", "answer": 2, "output": "3"},
    ]
    assert [v.reward for v in score("arithmetic", written(tmp_path / "a.jsonl", sums)).verdicts] == [1, 0]


MATH = {"problem": "Half?", "answer": r"\frac{1}{2}"}
COMMAS = {"prompt": "Write.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}


def test_mathematics_by_math_verify_and_a_row_that_hangs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify")
    rows = [
        {**MATH, "response": r"It is \boxed{0.5}.", "is_correct": True},
        {**MATH, "response": "1/3", "is_correct": False},
        {**MATH, "response": r"\boxed{9^{9^{9^{9^{9}}}}}", "is_correct": False},
        {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "$2.0$"}], "gold": "2"},
    ]
    with GraderPool(math_reward, workers=1, timeout_s=3.0) as pool:
        monkeypatch.setitem(graded._pools, math_reward, pool)
        result = CliRunner().invoke(app, ["score", "math", written(tmp_path / "m.jsonl", rows)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == r"line      1  1.00  as labelled  It is \boxed{0.5}."
    assert lines[1] == "line      2  0.00  as labelled  1/3"
    assert lines[2].startswith("line      3  0.00  TIMEOUT: the grader took longer than 3 s  as labelled")
    assert lines[3] == "line      4  1.00  $2.0$"
    assert "not judged: line 3" in result.stderr


def test_instructions_by_their_own_checks(tmp_path: Path) -> None:
    pytest.importorskip("if_verifiable")
    rows = [{**COMMAS, "response": "as you like"}, {**COMMAS, "response": "as, you, like"}]
    path = written(tmp_path / "i.jsonl", rows)
    assert [v.reward for v in score("ifeval", path).verdicts] == [1, 0]
    rows.append({**COMMAS, "instruction_id_list": ["punctuation:no_coma"], "response": "a"})
    result = CliRunner().invoke(app, ["score", "ifeval", written(tmp_path / "i.jsonl", rows)])
    assert result.exit_code == 2
    assert f"{path}:3: there is no instruction 'punctuation:no_coma'; near ones: punctuation:no_comma" in result.stderr


def test_without_the_library_of_a_grader_score_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    def absent(gold: str) -> None:
        raise ImportError("math_reward needs math-verify; pip install 'statelesschat[graders]'")

    monkeypatch.setattr(math, "check_math_gold", absent)
    result = CliRunner().invoke(app, ["score", "math", written(tmp_path / "m.jsonl", [{**MATH, "response": "5"}])])
    assert result.exit_code == 2 and "pip install 'statelesschat[graders]'" in result.stderr


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[1]", ":2: a row is an object"),
        ('{"question": "a", "gold": "x", "response": "5"}', ":2: the gold answer 'x' is no number"),
        ('{"question": "a", "response": "5"}', ":2: no gold or answer"),
        ('{"gold": "5", "response": "5"}', ":2: no question"),
        ('{"question": "a", "gold": "5"}', ":2: no answer to score"),
        ('{"question": "a", "gold": "5", "response_ids": [53, 999]}', ":2: id 999"),
        ('{"question": "a", "gold": "5", "response_ids": "53"}', ":2: response_ids"),
        ('{"question": "a", "gold": "5", "response": 5}', ":2: content is a int"),
        ('{"gold": "5", "messages": [{"role": "user", "content": "a"}]}', ":2: the last of messages"),
        ('{"gold": "5", "messages": []}', ":2: messages is"),
        ('{"question": "a", "gold": "5", "response": "5", "is_correct": "yes"}', ":2: is_correct"),
        ('{"question": "a", "gold": "5", "response": "5"', ":2: not JSON"),
        ('{"gold": "5", "messages": [{"role": "x", "content": "a"}, {"role": "assistant", "content": "5"}]}', ":2: "),
    ],
)
def test_what_cannot_be_scored_is_named_by_its_line(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "a", "gold": "5", "response": "5"}\n' + row + "\n")
    result = CliRunner().invoke(app, ["score", "gsm8k", str(path)])
    assert result.exit_code == 2 and result.exception.__class__ is SystemExit
    assert f"{path}{message}" in result.stderr


def test_unknown_tasks_files_and_empty_ones(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    for arguments, message in (
        (["gsm", str(empty)], "arithmetic, countdown, gsm8k, ifeval, math"),
        (["gsm8k", str(empty)], "holds no rows"),
        (["gsm8k", "no/such/file"], "cannot be read"),
        (["gsm8k", str(empty), "--tokenizer", "no/such"], "holds no rows"),
    ):
        result = CliRunner().invoke(app, ["score", *arguments])
        assert result.exit_code == 2 and message in result.stderr


@pytest.mark.slow
def test_rows_of_very_different_lengths_are_all_scored(tmp_path: Path) -> None:
    long = "So. " * 3000 + "#### 5"
    rows = [{"question": "a", "gold": "5", "response": text} for text in ("5", long, "", "6", long + "0")]
    assert [v.reward for v in score("gsm8k", written(tmp_path / "r.jsonl", rows), batch=2).verdicts] == [1, 1, 0, 0, 0]


@pytest.mark.slow
def test_the_published_labels() -> None:
    if not SHARED.exists():
        pytest.skip(f"needs {SHARED.name}, which is not beside this checkout")
    found = score("gsm8k", str(SHARED))
    assert found.agreement is not None and found.agreement >= 0.995
    assert [v.line for v in found.verdicts if v.agrees is False] == []


@pytest.mark.slow
def test_the_published_labels_in_every_form(tmp_path: Path) -> None:
    if not SHARED.exists():
        pytest.skip(f"needs {SHARED.name}, which is not beside this checkout")
    rows = [json.loads(line) for line in SHARED.read_text().splitlines()]
    rows = [{**row, "said": row["solution"]} for row in rows]
    for row in rows:
        del row["solution"]
    made = forms(rows)
    verdicts = {
        name: [v.reward for v in score("gsm8k", written(tmp_path / "r.jsonl", made[name])).verdicts]
        for name in ("text", "history", "ids")
    }
    assert verdicts["text"] == verdicts["history"] == verdicts["ids"] == [float(row["is_correct"]) for row in rows]
