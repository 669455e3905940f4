"""What `train` shows a person: a live panel on a terminal, lines elsewhere, and the end of it."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from statelesschat.runs.job import Progress, Summary

_BLOCKS = "▁▂▃▄▅▆▇█"
_EVERY = 10.0  # seconds between lines where there is no terminal


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """Values from 0 to 1 as a row of blocks, averaged to at most ``width``.

    Example:
        >>> sparkline([0.0, 0.5, 1.0])
        '▁▅█'
    """
    count = min(width, len(values))
    bounds = [round(i * len(values) / count) for i in range(count + 1)] if count else []
    means = [sum(values[a:b]) / (b - a) for a, b in zip(bounds, bounds[1:])]
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(top, max(0, int(value * top + 0.5)))] for value in means)


@contextlib.contextmanager
def display() -> Iterator["_Panel | _Lines"]:
    """A function of a `Progress` that shows it on standard error."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _Lines()
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield _Panel(live)


class _Panel:
    def __init__(self, live: Live) -> None:
        self._live = live

    def __call__(self, now: Progress) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        table.add_row(now.stage, ProgressBar(total=now.total, completed=now.done, width=48))
        table.add_row("", f"{now.done} of {now.total} updates, {_clock(now.seconds)}{_left(now)}")
        if now.rewards:
            table.add_row("reward", f"[green]{sparkline(now.rewards)}[/] {now.rewards[-1]:.3f}")
        for name, value in now.held_out.items():
            table.add_row(f"held out, {name}", f"{value:.3f}")
        self._live.update(Group(table, *(Text(line, style="dim") for line in now.sample)))


class _Lines:
    def __init__(self) -> None:
        self._told, self._stage = -_EVERY, ""

    def __call__(self, now: Progress) -> None:
        if now.stage == self._stage and now.done < now.total and time.monotonic() - self._told < _EVERY:
            return
        self._told, self._stage = time.monotonic(), now.stage
        told = f"  reward {now.rewards[-1]:.3f}" if now.rewards else ""
        held = "".join(f"  held out, {name}: {value:.3f}" for name, value in list(now.held_out.items())[-1:])
        print(
            f"{now.stage}: {now.done} of {now.total} ({_clock(now.seconds)}){told}{held}", file=sys.stderr, flush=True
        )


def print_summary(summary: Summary, samples: Sequence[dict[str, Any]], rewards: Sequence[float]) -> None:
    """The end of a run on standard output: conversations before and after, and the figures."""
    console = Console(highlight=False)
    for sample in samples:
        console.print(Text(f"held-out problem, {sample['stage']}, reward {sample['reward']:g}", style="bold"))
        for message in sample["messages"]:
            style = "green" if message["role"] == "assistant" else "dim"
            console.print(Text(f"  {message['role']}: {message['content']}", style=style), soft_wrap=True)
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "held-out problems": f"{summary.held_out:,}, none of them among the {summary.problems:,} trained on",
        "reward, random params": f"{summary.reward_random:.3f}",
        "reward before": f"{summary.reward_before:.3f}  after {summary.warm_up} updates of imitation",
        "reward after": f"{summary.reward_after:.3f}  ({summary.first_try_after:.3f} at the first try)",
        "reward while training": sparkline(rewards),
        "updates": f"{summary.updates:,} of {summary.batch} conversations",
        "time": f"{_clock(summary.seconds)}, {_clock(summary.compile_s)} of it compiling",
        "folder": summary.folder,
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    console.print(table)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _left(now: Progress) -> str:
    if not now.done or now.stage_seconds <= 0:
        return ""
    return f", {_clock(now.stage_seconds * (now.total - now.done) / now.done)} left of {now.stage}"
