"""Compiling a chat template: probe it, derive its table of gaps, verify the table, or say why there is none."""

import contextlib
import dataclasses
import datetime
import random
from collections.abc import Mapping, Sequence
from typing import Any

from statelesschat.core.config import ChatTemplate
from statelesschat.core.types import Role
from statelesschat.text.build import SEED, Builder
from statelesschat.text.call_formats import format_of, reads_back
from statelesschat.text.fields import Fields, specs_of
from statelesschat.text.marks import sentinels
from statelesschat.text.patience import TooLong, at_most
from statelesschat.text.probe import (
    ASSISTANT,
    CALL,
    CALLS,
    CHAT,
    SYSTEM,
    TOOLS,
    USER,
    Group,
    Observed,
    groups_of,
    pairs_of,
    probe,
)
from statelesschat.text.render import Renderer, RenderError, options_dict, options_key, role_names
from statelesschat.text.report import TemplateError, Witness, describe, witness_of
from statelesschat.text.shape import NoCalls, shape_of
from statelesschat.text.table import Refuted, Table
from statelesschat.text.transforms import (
    RENDERED,
    UNKNOWN,
)
from statelesschat.text.verify import Failure, chains_of, random_conversations, verify
from statelesschat.text.writer import Writer

_PATIENCE = 60.0  # seconds for a compilation; most templates take a third of one


def compile_template(
    tokenizer: Any,
    *,
    chat_template: str | None = None,
    roles: Mapping[Any, str] | Sequence[str] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    tools: Sequence[Any] | None = None,
    history: str = "exact",
    trusted_control_tokens: bool = False,
) -> ChatTemplate:
    """Turn a chat template into a table of gaps that reproduces it token for token, or refuse it with a witness.

    The template is asked what it writes between sentinel contents over many role sequences; the table read off it is
    then verified on random conversations, written turn by turn, at text and at token level. Nothing is guessed from
    a model's name. Dates are frozen at the day of compilation.

    Args:
        tokenizer: a fast tokenizer of transformers (`load_tokenizer`).
        chat_template: the Jinja text; by default the tokenizer's own.
        roles: the template's role names where they differ from system, user, assistant, tool:
            a sequence of four, or a mapping such as ``{"tool": "ipython"}``.
        template_kwargs: variables the template reads, such as ``{"enable_thinking": False}``; JSON values.
        tools: specs of tools (JSON schemas, or functions with annotations and docstrings) that the template writes
            into the system part.
        history: ``"exact"`` refuses a template that rewrites earlier turns; ``"frozen"`` takes it: the next turn's
            ids are the template's, and what was written stays as it was sampled.
        trusted_control_tokens: let contents hold control tokens. Only for contents that no user or tool wrote.

    Returns:
        The compiled template, whose ``report`` tells class, stop ids, gaps, dates and what was left out.

    Raises:
        TemplateError: with ``kind`` FROZEN_HISTORY, MOVES_CONTENT or HOST_ONLY, the ``witness`` and what to do.

    Example:
        >>> import statelesschat as sc
        >>> sc.compile_template(sc.load_tokenizer(None)).kind
        'EXACT'
    """
    if history not in ("exact", "frozen"):
        raise ValueError(f"history={history!r}; it is 'exact' or 'frozen'")
    if not hasattr(tokenizer, "apply_chat_template"):
        raise TypeError(f"the tokenizer is {tokenizer!r}; give one of transformers, as load_tokenizer returns it")
    source = _source(tokenizer, chat_template)
    today = datetime.date.today() if "strftime_now" in source else datetime.date(1970, 1, 1)
    options = options_key(template_kwargs)
    render = Renderer(
        tokenizer, source, role_names(roles), options_dict(options), f"{today.isoformat()}T12:00:00", specs_of(tools)
    )
    compiler = _Compiler(tokenizer, render, options, trusted_control_tokens)
    try:
        with at_most(_PATIENCE):
            return compiler.compile(history)
    except TooLong as error:
        reason = f"the template takes {error} to write a few short conversations; it may loop without an end"
        raise TemplateError("HOST_ONLY", reason, None, usable=False) from None


class _Compiler:
    def __init__(self, tokenizer: Any, render: Renderer, options: tuple[tuple[str, str], ...], trusted: bool) -> None:
        self.tokenizer = tokenizer
        self.render = render
        self.builder = Builder(tokenizer, render, options, trusted)

    def compile(self, history: str) -> ChatTemplate:
        simple = probe(self.render, (CHAT,))
        _check_usable(simple)
        self._check_tools()
        note = self._see_calls()
        found = probe(self.render)
        exact = witness = None
        try:
            exact = self._settle(self._table(found, note), None)
        except Refuted as refuted:
            witness = refuted.witness
        if exact is not None and (history == "exact" or _roles_of(exact) == len(Role)):
            return exact
        try:
            groups = None if history == "frozen" else (CHAT,)  # to tell what could be done, chat is enough
            frozen = self._settle(self._table(found, note, late=True), witness, groups)
        except Refuted as refuted:
            if exact is not None:
                return exact
            moved = [found.displaced[kinds] for kinds in CHAT.chains if kinds in found.displaced]
            if moved:
                raise TemplateError("MOVES_CONTENT", str(moved[0]), refuted.witness) from None
            raise TemplateError("HOST_ONLY", refuted.witness.reason, refuted.witness) from None
        if exact is not None:
            return frozen if _roles_of(frozen) > _roles_of(exact) else exact
        if history == "exact":
            raise TemplateError("FROZEN_HISTORY", witness.reason if witness else "", witness)
        return frozen

    def _check_tools(self) -> None:
        """Refuse specs that the template leaves out."""
        if not self.render.tools:
            return
        bare = Renderer(**{**self.render.given, "tools": ()})
        for kinds in ((USER,), (SYSTEM, USER), (USER, ASSISTANT, USER)):
            with contextlib.suppress(RenderError):
                contents = sentinels(len(kinds))
                if self.render(kinds, contents, True) != bare(kinds, contents, True):
                    return
        raise TemplateError(
            "HOST_ONLY",
            "the template does not write the tool specs it is given; describe the tools in the system prompt instead",
            None,
        )

    def _see_calls(self) -> str:
        """Give the renderer the shape of tool calls, or say why the template has none."""
        if "tool_calls" not in self.render.source:
            return "tool calls: refused, for the template does not read tool_calls"
        try:
            self.render.shape = shape_of(self.render, self.builder.pieces, self.tokenizer.eos_token)
        except NoCalls as error:
            return f"tool calls: refused, for {error}"
        return ""

    def _table(self, found: Observed, note: str, late: bool = False) -> Table:
        table = Table(found, self.render, late)
        table.notes += [note] if note else []
        return table

    def _settle(self, table: Table, witness: Witness | None, groups: Sequence[Group] | None = None) -> ChatTemplate:
        """Build and verify the table group by group; what plain chat can do without is left out where it fails."""
        rng = random.Random(SEED)
        template = self.builder.build(table)
        kept: set[tuple[int, int]] = set()
        for group in groups or groups_of(CALLS.pairs <= set(table.pairs)):
            if not group.pairs <= set(table.pairs):
                continue
            trial = kept | group.pairs
            chains = [kinds for kinds in group.chains if set(pairs_of(kinds)) <= trial]
            if group is CHAT:
                chains.append((USER, ASSISTANT) * 20 + (USER,))
            if group in (CHAT, CALLS, TOOLS):
                chains += chains_of(trial, rng, 8, 6)
            reason = _untransformable(group, template)
            failure = (
                None
                if reason
                else self._run(template, trial, chains * (2 if group in (CHAT, CALLS, TOOLS) else 1), rng)
            )
            if failure is not None:
                reason = witness_of(failure, self.render).reason
            if not reason and chains:
                kept = trial
            elif group is CHAT:
                raise Refuted(witness_of(failure, self.render) if failure else Witness(reason or "", [], "", ""))
            elif reason:
                table.notes.append(f"{group.name}: refused, for {reason}")
        kind = template.kind
        if kind == "EXACT" and any(
            name == RENDERED and any(role in pair for pair in kept) for role, name in enumerate(template.transforms)
        ):
            kind = "GAPS_EXACT"
        elif kind == "EXACT" and not (TOOLS.pairs <= kept or CALLS.pairs <= kept):
            kind = "EXACT_CHAT"
        gaps = tuple(gap for gap in template.gaps if (gap.previous, gap.next) in kept)
        template = dataclasses.replace(template, kind=kind, gaps=gaps)
        if CALLS.pairs <= kept:
            template = dataclasses.replace(template, call_format=self._call_format(template, table.notes))
        else:
            template = dataclasses.replace(template, calls=(), call_stop_id=-1)
        tokens = {i: str(token.content) for i, token in self.builder.pieces.controls.items()}
        return dataclasses.replace(template, report=describe(template, table.notes, witness, tokens))

    def _call_format(self, template: ChatTemplate, notes: list[str]) -> tuple[Any, ...]:
        """How the template's calls are read back; empty, with a note, where that cannot be told."""
        writer = Writer(self.tokenizer, template)

        def write(content: Fields) -> str:
            return writer.written(CALL, content).text

        with contextlib.suppress(ValueError):
            form = format_of(write)
            if form is not None and reads_back(form, write, bool(writer.render.shape and writer.render.shape.said)):
                return tuple(form)
        notes.append("tool calls: written, but not read back from answers, for their format is none that is known")
        return ()

    def _run(
        self, template: ChatTemplate, pairs: set[tuple[int, int]], chains: Sequence[Sequence[int]], rng: random.Random
    ) -> Failure | None:
        gaps = tuple(gap for gap in template.gaps if (gap.previous, gap.next) in pairs)
        writer = Writer(self.tokenizer, dataclasses.replace(template, gaps=gaps))
        thoughts = template.kind != "FROZEN_HISTORY"
        return verify(writer, random_conversations(rng, chains, template, thoughts))


def _check_usable(found: Observed) -> None:
    simple = (USER,)
    if simple in found.refused:
        reason = f"the template raises on a single user message ({found.refused[simple]})"
        if "TemplateSyntaxError" in reason:
            reason = reason.replace("the template raises on a single user message", "the template is no valid Jinja")
        if "undefined" in found.refused[simple].lower():
            reason += "; a variable it needs is passed with template_kwargs=..."
        raise TemplateError("HOST_ONLY", reason, None, usable=False)
    if simple in found.displaced:
        reason = f"{found.displaced[simple]}; it may want contents in parts or images"
        raise TemplateError("MOVES_CONTENT", reason, None, usable=False)


def _untransformable(group: Group, template: ChatTemplate) -> str | None:
    roles = {kind for pair in group.pairs for kind in pair if 0 <= kind < len(Role)}
    for role in sorted(roles):
        if template.transforms[role] == UNKNOWN:
            return f"some {Role(role).name.lower()} contents change the text the template writes around them"
    return None


def _roles_of(template: ChatTemplate) -> int:
    kinds = {kind for gap in template.gaps for kind in (gap.previous, gap.next)}
    return sum(int(role) in kinds for role in Role)


def _source(tokenizer: Any, chat_template: str | None) -> str:
    if chat_template is not None:
        if "{" not in chat_template:
            what = "is empty" if not chat_template.strip() else f"is {chat_template[:60]!r}, which writes no message"
            raise ValueError(f"chat_template {what}; give the Jinja text itself, not the name of a file")
        return chat_template
    if not tokenizer.chat_template:
        raise TemplateError(
            "HOST_ONLY",
            "this tokenizer has no chat template; pass chat_template=..., or use raw_template(tokenizer) for a base "
            "model",
            None,
        )
    return tokenizer.get_chat_template()
