"""A rollout kept as a file: what it holds changes only on purpose.

After such a change ``python -m tests.core.test_golden`` writes it anew; read the difference before it is kept.
"""

import json
from pathlib import Path
from typing import Any

import statelesschat as sc
from statelesschat import Kind
from tests import toy
from tests.core.reference import observe

FILE = Path(__file__).with_name("golden_rollout.json")


def rollout() -> list[dict[str, Any]]:
    """Every kind of transition once or more, on one row; what each left behind, up to the lengths."""
    config = toy.config(toy.long_closing(), store_logprobs=True, overflow_reward=-1.0)
    logprobs = [-0.5, -0.25, -1.0, -2.0, -0.125, -4.0, -0.75, -8.0]
    user, reply = toy.question(config, 30, 31), toy.reply(config, 32)
    program: list[tuple[str, Any]] = [
        ("reset", lambda s: sc.reset(s, user)),
        ("prefill two ids", lambda s: sc.prefill(s, toy.padded([60, 61], 3), toy.int32(2))),
        ("step, unfinished", lambda s: sc.step(s, toy.action([40, 41], False, logprobs))),
        ("step, stopped", lambda s: sc.step(s, toy.action([42, 10, 8], True, logprobs))),
        ("append a tool result", lambda s: sc.append(s, toy.reply(config, role=Kind.TOOL))),
        ("step, not stopped", lambda s: sc.step(s, toy.action([43], True, logprobs))),
        ("append a user message", lambda s: sc.append(s, reply)),
        ("step past the capacity", lambda s: sc.step(s, toy.action([44] * 8, True, logprobs))),
        ("append after the end", lambda s: sc.append(s, reply)),
        ("rewind to the first answer", lambda s: sc.rewind(s, 2)),
        ("append out of order", lambda s: sc.append(s, toy.message([33], Kind.USER, Kind.TOOL, Kind.USER))),
        ("restart elsewhere", lambda s: sc.restart(s, user, False)),
        ("restart here", lambda s: sc.restart(s, user, True)),
        ("terminate", lambda s: sc.terminate(s)),
    ]
    state, seen = sc.init(config), []
    for name, transition in program:
        state = transition(state)
        seen.append({"transition": name} | short(observe(state)))
    return seen


def short(views: dict[str, Any]) -> dict[str, Any]:
    """The views without their padding."""
    ends = {"delta": views["delta_length"], "last_response": views["last_response_length"], "turn_rewards": 4}
    whole = ("kinds", "finishes", "pieces")
    return {
        name: value[: ends.get(name, views["length"])] if isinstance(value, list) and name not in whole else value
        for name, value in views.items()
    }


def test_golden_rollout() -> None:
    want = json.loads(FILE.read_text())
    got = json.loads(json.dumps(rollout()))
    for before, after in zip(want, got, strict=True):
        assert after == before


def write() -> None:
    """Write the file anew."""
    lines = ",\n".join(" " + json.dumps(entry) for entry in rollout())
    FILE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    write()
