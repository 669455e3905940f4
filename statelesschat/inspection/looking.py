"""Looking at a chat template: its class, its report, and a conversation as it writes it."""

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statelesschat.core.config import ChatTemplate
from statelesschat.core.types import Kind
from statelesschat.text.fields import Content, Fields, ToolCall
from statelesschat.text.report import TemplateError
from statelesschat.text.standin import stand_in
from statelesschat.text.template import compile_template
from statelesschat.text.tokenizer import load_tokenizer
from statelesschat.text.writer import Writer

SUFFIXES = (".jinja", ".jinja2", ".j2")
_EXAMPLE: dict[Kind, tuple[str, ...]] = {
    Kind.SYSTEM: ("You are terse.",),
    Kind.USER: ("How warm is it in Oslo?", "And in Rome?", "Thanks."),
    Kind.ASSISTANT: ("It is 4 degrees.", "It is 19 degrees."),
    Kind.TOOL: ('{"celsius": 4}',),
}
_CHAINS = (
    (Kind.SYSTEM, Kind.USER, Kind.CALL, Kind.TOOL, Kind.ASSISTANT, Kind.USER),
    (Kind.USER, Kind.CALL, Kind.TOOL, Kind.ASSISTANT, Kind.USER),
    (Kind.SYSTEM, Kind.USER, Kind.ASSISTANT, Kind.USER),
    (Kind.USER, Kind.ASSISTANT, Kind.USER),
)


@dataclasses.dataclass(frozen=True)
class Part:
    """A stretch of a conversation's text."""

    text: str
    by: str  # who wrote it: "template", "control" (a control token of the template), "content" or "policy"


@dataclasses.dataclass(frozen=True)
class Look:
    """What there is to say of a template. Its fields but the last two are those of the JSON object."""

    name: str
    kind: str  # the class; of a refused one FROZEN_HISTORY, MOVES_CONTENT or HOST_ONLY
    compiles: bool  # with history="frozen" if it has to be
    exact: bool  # without
    usable: bool  # it writes a plain text message without variables, parts or images
    tools: str  # how calls are read: a style of `CallFormat`, "unread", "results" (behind answers only) or "none"
    reason: str  # why it is refused, or not exact; empty otherwise
    witness: list[dict[str, Any]]  # the conversation that shows it
    seconds: float  # to compile
    report: str  # the template's own, or the error
    example: tuple[Part, ...] = ()
    unread: bool = False  # the file could not be read

    def as_json(self) -> dict[str, Any]:
        """The look as plain values."""
        values = dataclasses.asdict(self)
        del values["example"], values["unread"]
        return values


def tokenizer_of(source: str, tokenizer: str | None) -> tuple[Any, str]:
    """The tokenizer to look with, the template in place, and what it is: ``source`` is a Jinja file, or a tokenizer.

    Raises what `load_tokenizer` raises, and OSError or UnicodeDecodeError for a file that cannot be read.
    """
    path = Path(source).expanduser()
    if path.suffix in SUFFIXES and not path.is_file():
        raise FileNotFoundError(f"there is no file {source!r}; give a Jinja file, a tokenizer's folder or a hub name")
    if not path.is_file():
        return load_tokenizer(source), source
    text = path.read_text(encoding="utf-8")
    if tokenizer is None:
        made = stand_in(text)
        return made, f"a stand-in with the template's own {len(made.added_tokens_decoder)} markers as added tokens"
    loaded = load_tokenizer(tokenizer)
    loaded.chat_template = text
    return loaded, tokenizer


def look(
    name: str,
    tokenizer: Any,
    *,
    history: str = "exact",
    tools: Sequence[Any] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    example: bool = True,
) -> Look:
    """Compile a tokenizer's template, with frozen history where that is what it takes, and say what was found.

    With ``history="frozen"`` a frozen table that offers more roles is preferred, as `compile_template` does.
    """
    options: dict[str, Any] = {"tools": tools, "template_kwargs": template_kwargs}
    begin = time.perf_counter()
    refusal: TemplateError | None = None
    template: ChatTemplate | None = None
    try:
        template = compile_template(tokenizer, history=history, **options)
    except TemplateError as error:
        refusal = error
        if error.kind == "FROZEN_HISTORY":
            template = compile_template(tokenizer, history="frozen", **options)
    seconds = time.perf_counter() - begin
    witness = refusal.witness if refusal is not None else None
    return Look(
        name=name,
        kind=template.kind if template is not None else refusal.kind if refusal is not None else "",
        compiles=template is not None,
        exact=template is not None and template.kind != "FROZEN_HISTORY",
        usable=template is not None or refusal is None or refusal.usable,
        tools=_tools(template),
        reason=refusal.reason if refusal is not None else "",
        witness=witness.messages if witness is not None else [],
        seconds=round(seconds, 3),
        report=template.report if template is not None else str(refusal),
        example=_example(tokenizer, template) if example and template is not None else (),
    )


def _tools(template: ChatTemplate | None) -> str:
    if template is None:
        return "none"
    if template.calls:
        return str(template.call_format[0]) if template.call_format else "unread"
    return "results" if template.allows(Kind.ASSISTANT, Kind.TOOL) else "none"


def _example(tokenizer: Any, template: ChatTemplate) -> tuple[Part, ...]:
    """The longest of a few conversations that the template can write, its answers sampled."""
    writer = Writer(tokenizer, template)
    for kinds in _CHAINS:
        try:
            return tuple(_parts(writer, kinds, _contents(kinds, template)))
        except ValueError:
            continue
    return ()


def _contents(kinds: Sequence[Kind], template: ChatTemplate) -> list[Content]:
    stock = {kind: iter(texts) for kind, texts in _EXAMPLE.items()}
    contents: list[Content] = []
    for kind in kinds:
        if kind == Kind.CALL:
            said = f"{template.opened}A call will tell." if template.opened else ""
            contents.append(Fields(said, (ToolCall("weather", '{"city": "Oslo"}', "call00001"),)))
        elif kind == Kind.TOOL:
            contents.append(Fields(next(stock[kind]), (), "weather", "call00001"))
        else:
            contents.append(next(stock[kind]))
    return contents


def _parts(writer: Writer, kinds: Sequence[Kind], contents: Sequence[Content]) -> list[Part]:
    first = next(i for i, kind in enumerate(kinds) if kind in (Kind.ASSISTANT, Kind.CALL))
    drafts = [(writer.prompt(kinds[:first], contents[:first]), "")]
    closed = 0
    for i in range(first, len(kinds)):
        if kinds[i] in (Kind.ASSISTANT, Kind.CALL):
            drafts.append((writer.answer(contents[i]), "policy"))
            continue
        answered = i + 1 == len(kinds) or kinds[i + 1] in (Kind.ASSISTANT, Kind.CALL)
        before = kinds[i - 1]
        drafts.append((writer.message(kinds[i], contents[i], before, Kind.GENERATE if answered else kinds[i + 1]), ""))
    parts: list[Part] = []
    for (draft, by), written in zip(drafts, writer.write([draft for draft, _ in drafts]), strict=True):
        ids = written.ids[closed:] if not by else written.ids
        skipped, closed = closed, 0
        if by:
            parts.append(Part(_text(writer, ids), by))
            closed = len(writer.template.closing_of(draft.kinds[-1])[1]) + 1
            continue
        spans = [(start - skipped, end - skipped) for _, start, end, _, _ in written.spans]
        parts += _told(writer, ids, spans)
    return parts


def _told(writer: Writer, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[Part]:
    """Ids in runs of one author each."""

    def author(position: int) -> str:
        if ids[position] in writer.pieces.controls:
            return "control"
        return "content" if any(start <= position < end for start, end in spans) else "template"

    runs = itertools.groupby(range(len(ids)), author)
    return [Part(_text(writer, [ids[i] for i in run]), by) for by, run in runs]


def _text(writer: Writer, ids: Sequence[int]) -> str:
    return writer.pieces.full.decode(list(ids), skip_special_tokens=False)
