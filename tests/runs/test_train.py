"""The training job: what it keeps, how it is stopped and gone on with, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statelesschat.runs.folder import FolderError, RunFolder
from statelesschat.runs.options import Options
from statelesschat.runs.setup import OptionError, make_setup
from statelesschat.runs.showing import sparkline

SMALL = ["--updates", "20", "--warm-up", "20", "--batch", "32", "--held-out", "16", "--max-operand", "40"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "statelesschat", "train", *arguments]


# All runs with the same devices: how many there are decides how sums are cut, and so how they are rounded.
ENVIRONMENT = os.environ | {"XLA_FLAGS": ""}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=ENVIRONMENT)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"task": "gsm8k"}, "learns arithmetic"),
        ({"updates": 15}, "a multiple of 10"),
        ({"warm_up": 35}, "a multiple of 10"),
        ({"seed": -1}, "--seed -1"),
        ({"repeats": 1}, "a group of one"),
        ({"batch": 30}, "no multiple of repeats"),
        ({"held_out": 5000}, "split 'test' has 1904"),
        ({"max_operand": 0}, "max_operand=0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        make_setup(Options(**options))


def test_held_out_problems_are_not_trained_on() -> None:
    problems = make_setup(Options(max_operand=40, held_out=16, batch=32)).problems
    assert not set(problems["train"]) & set(problems["held_out"]) and len(problems["held_out"]) == 16


def test_a_folder_is_used_for_one_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(FolderError, match="no checkpoint to resume from"):
        folder.open({}, resume=True)
    folder.open({"seed": 0}, resume=False)
    folder.add_metrics([{"update": 1, "reward": 1.0}])
    folder.open({"seed": 1}, resume=False)  # the first one ended before it had a checkpoint
    folder.note({"imitated": 40})
    assert folder.metrics() == [] and folder.noted() == {"seed": 1, "imitated": 40}
    (folder.checkpoint / "10").mkdir(parents=True)
    with pytest.raises(FolderError, match="holds a run already"):
        folder.open({}, resume=False)
    folder.open({"seed": 2}, resume=True)
    assert folder.noted()["seed"] == 1
    folder.add_metrics([{"update": i, "reward": i / 10} for i in range(1, 6)])
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"update": 6, "rew')  # as a run that is killed leaves it
    folder.drop_after(3)
    assert [line["update"] for line in folder.metrics()] == [1, 2, 3]


def test_sparklines_are_means() -> None:
    assert sparkline([]) == "" and sparkline([0.0] * 50 + [1.0] * 50, 2) == "▁█" and sparkline([2.0, -1.0]) == "█▁"


@pytest.mark.slow
def test_a_run_that_is_interrupted_and_resumed_equals_one_that_is_not(tmp_path: Path) -> None:
    whole = run(*SMALL, "--out", str(tmp_path / "whole"), "--json")
    assert whole.returncode == 0, whole.stderr
    summary = json.loads(whole.stdout.splitlines()[-1])
    assert {"reward_before", "reward_after"} <= set(summary) and summary["updates"] == 20
    beginning = command(*SMALL, "--out", str(tmp_path / "cut"))
    with subprocess.Popen(beginning, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as cut:
        assert cut.stderr is not None
        for line in cut.stderr:
            if line.startswith("imitation: 20"):  # it stops after the updates that run next, or before any
                cut.send_signal(signal.SIGINT)
                break
        told = cut.stderr.read()
    if cut.returncode == 130:  # else it was too late, and the run is whole
        assert "--resume" in told
        again = run(*SMALL, "--out", str(tmp_path / "cut"), "--resume", "--json")
        assert again.returncode == 0, again.stderr
    metrics = [RunFolder(tmp_path / name).metrics() for name in ("whole", "cut")]
    assert metrics[0] == metrics[1] and len(metrics[0]) == 20
    assert RunFolder(tmp_path / "cut").noted() == RunFolder(tmp_path / "whole").noted()
    other = run(*SMALL, "--seed", "1", "--out", str(tmp_path / "cut"), "--resume")
    assert other.returncode == 2 and "seed: saved 0, now 1" in other.stderr
