"""What `template` shows a person."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from statelesschat.inspection.looking import Look
from statelesschat.inspection.surveying import counts_of

_STYLES = {"control": "cyan", "template": "dim", "content": "", "policy": "bold green"}
_CLASS_STYLES = {"EXACT": "green", "EXACT_CHAT": "green", "GAPS_EXACT": "green", "FROZEN_HISTORY": "yellow"}


def print_look(found: Look, tokenizer: str) -> None:
    """The report, and a conversation as the template writes it, who wrote what told by colour."""
    console = Console(highlight=False)
    console.print(Text(f"{found.name}, looked at with {tokenizer}"), soft_wrap=True)
    if found.compiles and found.reason:
        console.print(Text(f"Not exact, for {found.reason}.", style="yellow"), soft_wrap=True)
        console.print(Text('It compiles with history="frozen":', style="yellow"), soft_wrap=True)
    console.print(Text(found.report, style="" if found.compiles else "red"), soft_wrap=True)
    if not found.example:
        return
    console.print()
    console.print(Text("a conversation as it is written (the policy's tokens between ⟦ and ⟧)", style="dim"))
    text = Text()
    for part in found.example:
        marks = ("⟦", "⟧") if part.by == "policy" else ("", "")
        text.append(f"{marks[0]}{part.text}{marks[1]}", style=_STYLES[part.by])
    console.print(text, soft_wrap=True)


def print_survey(looks: Sequence[Look]) -> None:
    """A line for each template, and the counts."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=240)
    table = Table(show_edge=False)
    table.add_column("template", no_wrap=True, min_width=min(max(len(one.name) for one in looks), 40), max_width=60)
    table.add_column("class", no_wrap=True, min_width=14)
    table.add_column("tools", no_wrap=True, min_width=7)
    table.add_column("s", justify="right", no_wrap=True, min_width=5)
    table.add_column("why it is not exact", overflow="ellipsis", no_wrap=True, ratio=1)
    for one in looks:
        kind = one.kind if one.usable else "unusable"
        style = _CLASS_STYLES.get(kind, "red")
        reason = " ".join(one.reason.split())
        table.add_row(Text(one.name), Text(kind, style), one.tools, f"{one.seconds:.2f}", Text(reason))
    console.print(table)
    counts = counts_of(looks)
    console.print(
        f"\n{counts['templates']} templates, {counts['usable']} usable: {counts['exact']} exact "
        f"({counts['exact_share']:.1%}), {counts['frozen']} more with frozen history ({counts['compile_share']:.1%}), "
        f"{counts['refused']} refused. Tool calls: {counts['with_tool_calls']} write them, "
        f"{counts['with_calls_read']} are read. Median {counts['median_s']:.2f} s.",
        soft_wrap=True,
    )
