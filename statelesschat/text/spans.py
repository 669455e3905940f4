"""What a template writes for a message with fields: a stretch of its own text and the author's, told apart."""

import functools
import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from statelesschat.text.fields import Content, Fields, ToolCall, map_strings, strings_of
from statelesschat.text.marks import Displaced, marks, sentinels, value_mark
from statelesschat.text.probe import CALL, TOOL, USER, segments
from statelesschat.text.render import Renderer, RenderError
from statelesschat.text.transforms import KNOWN, PROBES


class Span(NamedTuple):
    """The text of a message between its neighbours' gaps.

    ``plain`` are the stretches where the author's words look like control tokens, which they must not become; None:
    nothing in the text is a control token.
    """

    text: str
    plain: tuple[tuple[int, int], ...] | None = None


class Pattern(NamedTuple):
    """A tool result as its fields between stretches of text, where that is all there is to it: no render is needed."""

    texts: tuple[str, ...]  # one more than fields
    fields: tuple[str, ...]  # names of `Fields`
    transform: str  # of the content

    def span(self, content: Fields) -> Span:
        """The span of a result; what its author said is plain."""
        parts, plain = [self.texts[0]], []
        for field, behind in zip(self.fields, self.texts[1:], strict=True):
            value = str(getattr(content, field))
            start = sum(map(len, parts))
            if field == "content":
                value = KNOWN[self.transform](value)
                plain.append((start, start + len(value)))
            parts += [value, behind]
        return Span("".join(parts), tuple(plain))

    def fields_of(self, text: str) -> dict[str, str] | None:
        """What `span` put in; None for a text that it did not make."""
        names = (rf"(?P<{f}>[\w.:/\-]*)" if f != "content" else "(?P<content>.*)" for f in self.fields)
        pattern = re.escape(self.texts[0])
        for name, behind in zip(names, self.texts[1:], strict=True):
            pattern += name + re.escape(behind)
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match is None:
            return None
        found = match.groupdict()
        if self.transform == "json":
            try:
                found["content"] = json.loads(f'"{found["content"]}"')
            except ValueError:
                return None
        return found


class Spans:
    """Writes messages with fields as the template does, in the shortest conversation that holds them.

    Args:
        render: with a shape.
        controls: the texts of all control tokens.
        said: those that what is said beside calls may hold, as answers may.
        found: the control tokens in a text, as the whole tokenizer finds them, those in the stretches left out.
    """

    def __init__(
        self,
        render: Renderer,
        controls: Sequence[str],
        said: Collection[str],
        found: Callable[[str, Sequence[tuple[int, int]]], list[int]],
    ) -> None:
        self.render = render
        self.controls = controls
        self.said = said
        self.found = found

    def __call__(self, kind: int, content: Fields) -> Span:
        """The span of a message; ValueError where the template refuses it or loses some of it."""
        write = self._call if kind == CALL else self._result
        self._check_complete(kind, content)
        if kind == TOOL and content.content.strip() and self.pattern is not None:
            return self.pattern.span(content)
        try:
            span = self._told_apart(write, content, write(content))
            stems = sentinels(len(strings_of(content)), strings_of(content))
            fresh = iter(stems)
            skeleton = write(self._skeleton(content, lambda string: next(fresh) if string.strip() else string))
        except (Displaced, RenderError) as error:
            raise ValueError(f"the template cannot write this message: {error}") from None
        used = stems[: len(stems) - sum(1 for _ in fresh)]
        names = [call.name for call in content.calls if self.render.shape and self.render.shape.call_name]
        lost = any(stem not in skeleton for stem in used) or any(span.text.count(n) < names.count(n) for n in names)
        if lost:
            raise ValueError("the template leaves out some of this message; it may write one call at a time")
        if self.found(span.text, span.plain or ()) != self.found(skeleton, ()):
            raise ValueError("this message and the template's text around it make a control token; reword it")
        return span

    def _skeleton(self, content: Fields, change: Callable[[str], str]) -> Fields:
        """The message with its words replaced; what is said beside calls stays where it holds what answers may."""
        if content.calls and any(control in content.content for control in self.said):
            return _changed(content._replace(content=""), change)._replace(content=content.content)
        return _changed(content, change)

    def _check_complete(self, kind: int, content: Fields) -> None:
        shape = self.render.shape
        assert shape is not None
        if kind == CALL and content.content.strip() and not shape.said:
            raise ValueError(
                "this template leaves out or moves what is said beside tool calls; leave their content empty"
            )
        if kind == CALL and shape.call_id and any(call.id is None for call in content.calls):
            raise ValueError("this template writes the id of a tool call; give every call an id")
        have = {"name": content.name, "tool_call_id": content.call_id}
        missing = [name for name in shape.refers if kind == TOOL and have[name] is None]
        if missing:
            raise ValueError(
                f"this template writes the {' and the '.join(missing)} of a tool result; give the content as "
                "{'content': …, " + ", ".join(f"'{name}': …" for name in missing) + "}"
            )

    def _call(self, content: Fields) -> str:
        """All between the generation prompt and the stop token of a message with calls."""
        calls = [c if c.id is not None else c._replace(id=f"call{i:05d}") for i, c in enumerate(content.calls)]
        behind = sentinels(len(calls) + 1, [content.content, *strings_of(content)])[1:]
        results = [Fields(mark, (), c.name, c.id) for mark, c in zip(behind, calls, strict=True)]
        kinds = (USER, CALL, *(TOOL for _ in results))
        asked = marks((USER,), None)
        text = self.render(kinds, [*asked, content._replace(calls=tuple(calls)), *results], True)
        pattern = segments(self.render, (USER, CALL, TOOL), True)
        start = pattern.spans[1][0]
        first = text.rfind(behind[0])
        end = text.rfind(self.render.shape.stop, 0, first) if self.render.shape is not None else -1
        if text[:start] != pattern.text[:start] or not start <= end:
            raise Displaced(CALL, "one that changes the text around it", kinds)
        return text[start:end]

    def _result(self, content: Fields) -> str:
        """All between the gaps of a tool result that says which call it answers."""
        kinds = (USER, CALL, TOOL)
        pattern, contents = segments(self.render, kinds, True), marks(kinds, self.render.shape)
        call = contents[1]
        assert isinstance(call, Fields)
        (marked,) = call.calls
        called = ToolCall(content.name or marked.name, marked.arguments, content.call_id or marked.id)
        text = self.render(kinds, [contents[0], call._replace(calls=(called,)), content], True)
        gap, behind = pattern.gaps[2], pattern.gaps[3]
        at = text.find(gap, text.find(value_mark(call)))
        if at < 0 or not text.endswith(behind) or at + len(gap) > len(text) - len(behind):
            raise Displaced(TOOL, "one that changes the text around it", kinds)
        return text[at + len(gap) : len(text) - len(behind)]

    @functools.cached_property
    def pattern(self) -> Pattern | None:
        """How results are written, None where the template has to be asked for each."""
        kinds = (USER, CALL, TOOL)
        try:
            whole = segments(self.render, kinds, True)
            marked = marks(kinds, self.render.shape)[2]
            assert isinstance(marked, Fields)
            text = whole.text[slice(*whole.spans[2])]
            values = {"content": marked.content, "name": marked.name or "", "call_id": marked.call_id or ""}
            found = sorted((m.start(), f) for f, v in values.items() if v for m in re.finditer(re.escape(v), text))
            fields = tuple(field for _, field in found)
            texts = re.split("|".join(re.escape(v) for v in values.values() if v), text)
            for name in KNOWN:
                pattern = Pattern(tuple(texts), fields, name)
                trials = [Fields(probe, (), "look_up", f"{i:02d}cdefghi") for i, probe in enumerate(PROBES)]
                if all(pattern.span(trial).text == self._result(trial) for trial in trials if trial.content.strip()):
                    return pattern
        except (Displaced, RenderError):
            pass
        return None

    def _told_apart(self, write: Callable[[Fields], str], content: Fields, text: str) -> Span:
        """The span with the author's control tokens found: they are replaced by sentinels, rendered and put back."""
        strings = strings_of(content)
        present = sorted((c for c in self.controls if any(c in s for s in strings)), key=len, reverse=True)
        if not present:
            return Span(text, ())
        stems = iter(sentinels(sum(s.count(c) for s in strings for c in present), strings))
        hidden: dict[str, str] = {}

        def hide(string: str, allowed: Collection[str] = ()) -> str:
            for control in (c for c in present if c not in allowed):
                while control in string:
                    mark = next(stems)
                    hidden[mark] = control
                    string = string.replace(control, mark, 1)
            return string

        said = hide(content.content, self.said if content.calls else ())
        told = write(_changed(content._replace(content=""), hide)._replace(content=said))
        if any(told.count(mark) != 1 for mark in hidden):
            raise ValueError("what looks like a control token in this message is written more than once; take it out")
        parts: list[str] = []
        plain, cursor, length = [], 0, 0
        for mark in sorted(hidden, key=told.index):
            between = told[cursor : told.index(mark)]
            start = length + len(between)
            length = start + len(hidden[mark])
            parts += [between, hidden[mark]]
            plain.append((start, length))
            cursor = told.index(mark) + len(mark)
        whole = "".join((*parts, told[cursor:]))
        if whole != text:
            raise ValueError("the template changes what looks like a control token in this message; take it out")
        return Span(whole, tuple(plain))


def _changed(content: Fields, change: Callable[[str], str]) -> Fields:
    changed: Content = map_strings(content, change)
    assert isinstance(changed, Fields)
    return changed
