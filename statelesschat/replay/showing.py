"""What `replay` shows a person: a table, and what went wrong."""

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from statelesschat.replay.checking import Cut, Mismatch, Tally
from statelesschat.replay.job import Summary
from statelesschat.replay.planning import Script

_SHOWN = 10  # mismatches and truncations that are told one by one


def table_of(summary: Summary) -> Table:
    """The summary as a table of names and figures."""
    table = Table(show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", overflow="fold")
    cut = ", ".join(f"{count} {reason}" for reason, count in summary.truncations.items())
    rows = {
        "tokenizer": summary.tokenizer,
        "template class": summary.template_class,
        "conversations": f"{summary.conversations:,}",
        "turns": f"{summary.turns:,}",
        "prompts compared": f"{summary.prompts:,}",
        "tokens": f"{summary.tokens:,}",
        "share of loss tokens": f"{summary.loss_share:.1%}",
        "retokenised answers": f"{summary.retokenised:,}",
        "mismatches": f"{summary.mismatches:,}",
        "truncations": cut or "0",
        "conversations/s": f"{summary.conversations_per_s:,.0f}",
        "tokens/s": f"{summary.tokens_per_s:,.0f}",
    }
    for name, value in rows.items():
        table.add_row(name, Text(value), style="red" if name == "mismatches" and summary.mismatches else None)
    return table


def print_summary(summary: Summary) -> None:
    """The table on standard output, and what its rates leave out."""
    print(f"replay of {summary.file}")
    Console().print(table_of(summary))
    print(f"{summary.batch} rows of {summary.capacity} ids at once on {summary.device}; the rates leave out")
    print(f"{summary.compile_s:.1f} s of compiling and {summary.check_s:.1f} s of rendering for the comparison")


def print_shown(tally: Tally) -> None:
    """Conversations as the device holds them: what was sampled, so what the loss is taken over, in green."""
    console = Console(highlight=False)
    for number, runs in sorted(tally.shown.items()):
        print(f"conversation {number}, as it lies on the device" + (" (green: sampled)" if console.is_terminal else ""))
        text = Text()
        for run, sampled in runs:
            text.append(run, style="bold green" if sampled else "dim")
        console.print(text, soft_wrap=True)
        print()


def print_troubles(tally: Tally, file: str) -> None:
    """Every mismatch and every conversation that was cut, the first ones of each in full, on standard error."""
    for lines in (
        [mismatch_text(m, file) for m in tally.mismatches[:_SHOWN]],
        [f"… and {len(tally.mismatches) - _SHOWN} more mismatches"] if len(tally.mismatches) > _SHOWN else [],
        [cut_text(c, file) for c in tally.cuts[:_SHOWN]],
        [f"… and {len(tally.cuts) - _SHOWN} more truncations"] if len(tally.cuts) > _SHOWN else [],
    ):
        for line in lines:
            print(line, file=sys.stderr)


def mismatch_text(mismatch: Mismatch, file: str) -> str:
    """A mismatch with the stretch around the first difference."""
    text = f"MISMATCH {_place(mismatch.script, mismatch.turn, file)}: {mismatch.what}"
    if mismatch.device or mismatch.expected:
        text += f"\n  device:   {mismatch.device!r}\n  expected: {mismatch.expected!r}"
    return text


def cut_text(cut: Cut, file: str) -> str:
    """A conversation that did not fit, and the capacity it takes."""
    advice = f"the whole conversation takes {cut.script.total} ids; raise --capacity to that or shorten it"
    return f"{cut.reason} {_place(cut.script, cut.turn, file)}: {advice}"


def _place(script: Script, turn: int, file: str) -> str:
    return f"{file}:{script.line} (conversation {script.number}), " + (f"turn {turn}" if turn else "first prompt")
