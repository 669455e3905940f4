"""Many conversations in which everything goes wrong: none is lost, none is stuck, nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statelesschat.host.sandbox import IsolationError, check
from tests.host.storm import BATCH, KINDS

ROOT = Path(__file__).parents[2]
LONG = 600.0


@pytest.fixture(autouse=True, scope="module")
def _bubblewrap() -> None:
    try:
        check("bubblewrap")
    except IsolationError as error:
        pytest.skip(str(error))


def begin(folder: Path, conversations: int, number: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "XLA_FLAGS": "", "STORM": str(number)}
    words = [sys.executable, "-m", "tests.host.storm", str(conversations), str(number)]
    return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left(number: int) -> list[str]:
    """Command lines of processes that are of a storm: its own, and those that its sessions started."""
    found = []
    for name in os.listdir("/proc"):
        try:
            line, environment = (Path(f"/proc/{name}/{part}").read_bytes() for part in ("cmdline", "environ"))
        except OSError:
            continue
        if line and (f"sleep\0{number}\0".encode() in line or f"STORM={number}\0".encode() in environment):
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def nothing_left(number: int, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while left(number) and time.monotonic() < until:
        time.sleep(0.05)
    return not left(number)


@pytest.mark.parametrize("conversations", [3 * BATCH, pytest.param(500, marks=pytest.mark.slow)])
def test_every_conversation_has_a_result_or_a_status_and_nothing_is_left(tmp_path: Path, conversations: int) -> None:
    number = 900_000 + os.getpid() * 2
    program = begin(tmp_path, conversations, number)
    said, told = program.communicate(timeout=LONG)
    assert program.returncode == 0, told
    found = json.loads(said)
    became = found["became"]
    assert found["wrong"] == []
    assert became["OK"] + became["HOST_ERROR"] == conversations  # none lost, and none of any other status
    assert became["as expected"] + became.get("struck", 0) == conversations
    assert became["as expected"] > conversations / 2 and found["kills"] > 0
    assert found["left"] == {"held": 0, "processes": 0, "sockets": 0, "files": []}
    assert os.listdir(tmp_path) == [] and nothing_left(number)
    assert conversations >= len(KINDS)


def test_a_program_that_is_killed_leaves_nothing_and_can_be_started_again(tmp_path: Path) -> None:
    number = 900_001 + os.getpid() * 2
    program = begin(tmp_path, 0, number)
    assert program.stdout is not None and program.stderr is not None
    with program.stdout, program.stderr:
        assert program.stderr.readline() == "batch 0\n"
        time.sleep(1.0)
        assert len(left(number)) > 5  # in the midst of it
        program.send_signal(signal.SIGKILL)
        assert program.wait(LONG) == -signal.SIGKILL
    assert nothing_left(number), left(number)
    again = begin(tmp_path, BATCH, number)
    said, told = again.communicate(timeout=LONG)
    assert again.returncode == 0, told
    assert json.loads(said)["wrong"] == []
    assert os.listdir(tmp_path) == [] and nothing_left(number)
