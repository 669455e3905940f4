"""The main job on real questions and answers under every real vocabulary with its own template."""

import json
from pathlib import Path
from typing import Any

import pytest

from statelesschat.replay import Options, replay
from tests import vocab
from tests.text.real import SETUPS

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
TURNS = 3


def rows(name: str) -> list[dict[str, Any]]:
    """The lines of a shared file; the test is skipped where there is none."""
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{name} is not in the folder `shared/data` beside the checkout")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Model solutions as conversations of one turn and of several, and the two turns of MT-Bench, answered."""
    solutions = rows("gsm8k_model_solutions_1200.jsonl")
    single = [{"question": row["question"], "answer": row["solution"]} for row in solutions[: 200 * TURNS : TURNS]]
    pairs = [
        ({"role": "user", "content": r["question"]}, {"role": "assistant", "content": r["solution"]}) for r in solutions
    ]
    several = [{"messages": [m for pair in pairs[i : i + TURNS] for m in pair]} for i in range(0, 300, TURNS)]
    bench = [
        {"messages": [m for turn, (_, answer) in zip(row["turns"], pairs[2 * i :], strict=False)
                      for m in ({"role": "user", "content": turn}, answer)]}
        for i, row in enumerate(rows("mt_bench_questions.jsonl"))
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("talks") / "talks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*single, *several, *bench)), encoding="utf-8")
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETUPS)
def test_every_prompt_is_the_tokenizers_own(name: str, talks: str, tmp_path: Path) -> None:
    """As a user has it: the tokenizer comes from a folder."""
    make, template, history = SETUPS[name]
    make(vocab.public(template)).save_pretrained(tmp_path)
    summary, tally = replay(Options(file=talks, tokenizer=str(tmp_path), history=history))
    assert not tally.mismatches and not tally.truncations
    assert (summary.conversations, summary.turns) == (380, 200 + 300 + 160)
    assert summary.prompts == summary.turns
