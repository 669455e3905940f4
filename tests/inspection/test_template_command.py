"""`statelesschat template`: what it prints, for one template and for a folder of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from statelesschat.__main__ import app
from statelesschat.inspection.looking import look, tokenizer_of
from statelesschat.inspection.surveying import counts_of, survey, templates_in
from tests.text import templates as t

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def run(*arguments: str):
    return CliRunner().invoke(app, ["template", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, source in {
        "chatml": CHATML,
        "drops": t.DROPS_THOUGHT,
        "moves": t.LAST_FIRST,
        "parts": t.PARTS_ONLY,
        "unmarked": t.UNMARKED,
        "broken": "{% for m in messages %}",
    }.items():
        (tmp_path / f"{name}.jinja").write_text(source)
    (tmp_path / "notes.txt").write_text("no template")
    return tmp_path


def test_the_built_in_template_is_shown_with_an_example() -> None:
    result = run()
    assert result.exit_code == 0
    assert "class     EXACT" in result.stdout
    assert "⟦It is 4 degrees.<|im_end|>⟧" in result.stdout


def test_a_file_is_looked_at_with_its_own_markers(folder: Path) -> None:
    result = run(str(folder / "chatml.jinja"))
    assert result.exit_code == 0
    assert "stand-in" in result.stdout
    assert "user -> generate         '<|im_end|>\\n<|im_start|>assistant\\n'" in result.stdout


def test_a_template_that_rewrites_history_shows_its_witness_and_what_frozen_history_gives(folder: Path) -> None:
    result = run(str(folder / "drops.jinja"))
    assert result.exit_code == 0
    assert "Not exact, for the template rewrites an answer once it is past" in result.stdout
    assert "class     FROZEN_HISTORY" in result.stdout
    assert "witness" in result.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("moves", "moved before"),
        ("parts", "contents in parts"),
        ("unmarked", "added token"),
        ("broken", "no valid Jinja"),
    ],
)
def test_a_refused_template_says_why_and_ends_with_one(folder: Path, name: str, words: str) -> None:
    result = run(str(folder / f"{name}.jinja"))
    assert result.exit_code == 1
    assert words in result.stdout
    assert "Traceback" not in result.output


def test_json_holds_what_the_text_says(folder: Path) -> None:
    found = json.loads(run(str(folder / "drops.jinja"), "--json").stdout)
    assert found["kind"] == "FROZEN_HISTORY"
    assert (found["compiles"], found["exact"], found["usable"]) == (True, False, True)
    assert found["witness"][0]["role"] == "user"
    assert found["report"].startswith("class     FROZEN_HISTORY")


def test_switches_and_specs_reach_the_template(folder: Path) -> None:
    path = folder / "switched.jinja"
    path.write_text(t.SWITCHED)
    assert "is opened with" in run(str(path)).stdout
    assert "is opened with" not in run(str(path), "--template-kwargs", '{"thinking": true}').stdout
    specs = folder / "specs.json"
    specs.write_text('[{"type": "function", "function": {"name": "f"}}]')
    result = run(str(path), "--tools", str(specs))
    assert result.exit_code == 1
    assert "does not write the tool specs" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere.jinja"],
        ["--all", "nowhere"],
        ["--template-kwargs", "{"],
        ["--template-kwargs", "[1]"],
        ["--tools", "nowhere.json"],
        ["x", "--all", "."],
        ["--all", ".", "--history", "frozen"],
        ["--all", ".", "--tokenizer", "./nowhere"],
        ["--out", "/nowhere/at/all.json"],
    ],
)
def test_input_that_cannot_be_used_ends_with_two_and_a_sentence(arguments: list[str], tmp_path: Path) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.strip() and "Traceback" not in result.output


def test_a_folder_is_a_table_with_counts(folder: Path) -> None:
    out = folder / "survey.json"
    result = run("--all", str(folder), "--out", str(out))
    assert result.exit_code == 0
    assert "6 templates, 4 usable: 1 exact (25.0%), 1 more with frozen history (50.0%), 2 refused." in result.stdout
    found = json.loads(out.read_text())
    assert found["counts"]["unusable"] == 2
    assert [one["name"] for one in found["templates"]] == ["broken", "chatml", "drops", "moves", "parts", "unmarked"]
    assert {one["name"]: one["usable"] for one in found["templates"]}["broken"] is False


def test_many_templates_are_looked_at_by_several_processes(tmp_path: Path) -> None:
    for i in range(26):
        (tmp_path / f"{i:02}.jinja").write_text(CHATML.replace("im_", f"im{i}_"))
    told: list[tuple[int, int]] = []
    looks = survey(templates_in(str(tmp_path)), advance=lambda done, total: told.append((done, total)))
    assert [one.name for one in looks] == [f"{i:02}" for i in range(26)]
    assert counts_of(looks)["exact"] == 26
    assert told[-1] == (26, 26)


def test_a_template_that_loops_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("statelesschat.text.template._PATIENCE", 0.5)
    path = tmp_path / "endless.jinja"
    path.write_text(ENDLESS)
    monkeypatch.setattr("statelesschat.text.standin._PATIENCE", 0.5)
    made, _ = tokenizer_of(str(path), None)
    found = look("endless", made)
    assert (found.compiles, found.usable) == (False, False)
    assert "more than 0.5 seconds" in found.reason


def test_the_command_runs_as_a_module(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "statelesschat", "template", str(folder / "chatml.jinja"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["kind"] == "EXACT"
