"""What a compiled template tells its user, and what a refused one shows."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from statelesschat.core.config import ChatTemplate
from statelesschat.core.types import Kind
from statelesschat.text.marks import Shape
from statelesschat.text.render import Renderer
from statelesschat.text.verify import Failure

_ADVICE = {
    "FROZEN_HISTORY": (
        'pass history="frozen" to keep what was sampled and take only the next turn from the template, or a chat '
        "template that leaves earlier turns alone"
    ),
    "MOVES_CONTENT": "use another chat template: chat_template=...",
    "HOST_ONLY": "use another chat template: chat_template=...",
}


class Witness(NamedTuple):
    """A conversation on which a template and its table part."""

    reason: str
    messages: list[dict[str, Any]]
    before: str  # what stood there, or what the table says
    after: str  # what the template writes


class TemplateError(ValueError):
    """A chat template that cannot be compiled.

    Attributes:
        kind: FROZEN_HISTORY, MOVES_CONTENT or HOST_ONLY.
        reason: what is the matter, in a sentence.
        witness: the conversation that shows it, or None.
        usable: False for a template that does not write a plain text message at all: it raises, or wants variables,
            contents in parts or images.
    """

    def __init__(self, kind: str, reason: str, witness: Witness | None, usable: bool = True) -> None:
        self.kind, self.reason, self.witness, self.usable = kind, reason, witness, usable
        lines = [f"{kind}: {reason}", f"  what to do: {_ADVICE[kind]}"]
        if witness is not None and witness.messages:
            lines.append("  witness:")
            lines += [f"    {json.dumps(message, ensure_ascii=False)}" for message in witness.messages]
        if witness is not None and (witness.before or witness.after):
            before, after = around_difference(witness.before, witness.after)
            lines += [f"    before: {before!r}", f"    after:  {after!r}"]
        super().__init__("\n".join(lines))


def around_difference(one: str, two: str, width: int = 60) -> tuple[str, str]:
    """The stretches of two texts around the first place where they differ."""
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    start = max(at - width // 2, 0)
    mark = "…" if start else ""
    return mark + one[start : at + width], mark + two[start : at + width]


def witness_of(failure: Failure, render: Renderer) -> Witness:
    """A verification failure as a witness."""
    kinds, contents = failure.conversation.kinds, failure.conversation.contents
    upto = failure.upto or len(kinds)
    reasons = {
        "order": failure.theirs or failure.ours,
        "text": "the text of a conversation written turn by turn is not the template's",
        "tokens": "the ids of a conversation written turn by turn are not the tokenizer's",
    }
    return Witness(reasons[failure.level], render.messages(kinds[:upto], contents[:upto]), failure.ours, failure.theirs)


def _tool_lines(template: ChatTemplate) -> list[str]:
    lines = [f"tools     {len(template.tools)} specs are written"] if template.tools else []
    if template.calls:
        read = f"read as {template.call_format[0]}" if template.call_format else "not read back from answers"
        refers = Shape(*template.calls).refers
        asks = f"; a result gives its {' and its '.join(refers)}" if refers else ""
        lines.append(f"calls     written as the template does, {read}{asks}")
    if template.allows(Kind.TOOL, Kind.GENERATE):
        asked, after = (template.gap(kind, Kind.GENERATE) for kind in (Kind.USER, Kind.TOOL))
        if (asked.core_ids[-1:], asked.lead) != (after.core_ids[-1:], after.lead):
            lines.append("calls     after a tool result no assistant header is written: the answer goes on behind it")
    return lines


def describe(template: ChatTemplate, notes: Sequence[str], witness: Witness | None, tokens: Mapping[int, str]) -> str:
    """The printable report of a compiled template; ``tokens`` are the texts of control tokens."""
    meaning = {
        "EXACT": "every prompt equals the template's, with tools",
        "EXACT_CHAT": "every prompt equals the template's; it has no tools",
        "GAPS_EXACT": "every prompt equals the template's; the host renders contents",
        "FROZEN_HISTORY": "the next turn equals the template's; earlier turns stay as sampled",
    }
    if template.kind == "EXACT" and not template.calls:
        meaning["EXACT"] = "every prompt equals the template's, tool results included; tool calls it does not write"
    lines = [f"class     {template.kind}: {meaning[template.kind]}"]
    stops = (f"{stop} {tokens[stop]!r}" if stop in tokens else str(stop) for stop in template.stop_ids)
    lines.append(f"stop ids  {', '.join(stops)}")
    rest = template.rest_core + template.rest_lead
    if rest:
        lines.append(f"answer    begins with {rest!r}, which the generation prompt leaves to the policy")
    if template.opened:
        lines.append(f"answer    is opened with {template.opened!r}, which stays part of its content")
    if "strftime_now" in template.source:
        lines.append(f"dates     frozen at {template.clock[:10]}")
    changed = {
        name: transform
        for name, transform in zip(template.roles, template.transforms, strict=True)
        if transform != "identity"
    }
    if changed:
        lines.append("contents  " + ", ".join(f"{role}: {name}" for role, name in changed.items()))
    lines += _tool_lines(template)
    if template.piece_encoding != "plain":
        lines.append(f"pieces    encoded {template.piece_encoding}")
    lines.append("gaps")
    for gap in template.gaps:
        names = f"{Kind(gap.previous).name.lower()} -> {Kind(gap.next).name.lower()}"
        lines.append(f"  {names:24} {gap.text!r}" + ("" if gap.appendable else "   (in prompts only)"))
    lines += [f"note      {note}" for note in dict.fromkeys(notes)]
    if witness is not None:
        lines.append(f"witness   {witness.reason}")
        before, after = around_difference(witness.before, witness.after)
        lines += [f"  before  {before!r}", f"  after   {after!r}"]
    return "\n".join(lines)
