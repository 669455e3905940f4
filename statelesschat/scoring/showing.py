"""What `score` shows a person: a line for each row, and the summary."""

import sys
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from statelesschat.scoring.job import Scores, Verdict


def print_verdicts(scores: Scores, only_wrong: bool) -> None:
    """A line for each row, or for those alone whose reward is not full or does not agree with their label."""
    console = Console(highlight=False)
    for verdict in scores.verdicts:
        if only_wrong and verdict.reward == 1.0 and verdict.agrees is not False:
            continue
        console.print(_line(verdict), soft_wrap=True)


def print_scores(scores: Scores) -> None:
    """The summary on standard output, and on standard error the rows that were not judged, or not as labelled."""
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", overflow="fold")
    for name, value in _summary(scores):
        table.add_row(name, Text(value))
    Console().print(table)
    _tell("not judged", scores.failed)
    _tell("not as labelled", (v for v in scores.verdicts if v.agrees is False))


def _summary(scores: Scores) -> list[tuple[str, str]]:
    rows = len(scores.verdicts)
    full = sum(v.reward == 1.0 for v in scores.verdicts)
    lines = [
        ("task", scores.task),
        ("file", scores.file),
        ("tokenizer", scores.tokenizer),
        ("rows", f"{rows:,}"),
        ("mean reward", f"{scores.mean_reward:.4f}"),
        ("full reward", f"{full:,}"),
        ("not judged", f"{len(scores.failed):,}"),
    ]
    if scores.agreement is not None:
        labelled = [v for v in scores.verdicts if v.agrees is not None]
        agreeing = sum(bool(v.agrees) for v in labelled)
        lines.append(("agreement with labels", f"{scores.agreement:.2%} ({agreeing:,} of {len(labelled):,})"))
    return [*lines, ("seconds", f"{scores.seconds:.1f} on {scores.device}, compiling included")]


def _line(verdict: Verdict) -> Text:
    style = "yellow" if verdict.status != "OK" else "green" if verdict.reward == 1.0 else "red"
    text = Text(f"line {verdict.line:>6}  ")
    text.append(f"{verdict.reward:.2f}", style=style)
    if verdict.status != "OK":
        text.append(f"  {verdict.detail or verdict.status}", style="yellow")
    if verdict.agrees is not None:
        text.append(
            "  as labelled" if verdict.agrees else "  NOT as labelled", style="dim" if verdict.agrees else "red"
        )
    return text.append(f"  {verdict.ends}", style="dim")


def _tell(what: str, verdicts: Iterable[Verdict], most: int = 20) -> None:
    found = [str(v.line) for v in verdicts]
    if found:
        more = f" and {len(found) - most} more" if len(found) > most else ""
        print(f"{what}: line {', '.join(found[:most])}{more}", file=sys.stderr)
