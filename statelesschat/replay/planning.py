"""What a conversation is made of on the device, and how wide and how long everything in it is.

Everything is encoded once on the host before the first transition, so that widths fit the data, one trace serves all
of it, and a conversation that will not fit is known by name.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from statelesschat.core.types import Kind, Role
from statelesschat.replay.reading import Record
from statelesschat.text.draft import ANSWERS, Draft
from statelesschat.text.fields import Content
from statelesschat.text.jsonfile import InputError
from statelesschat.text.writer import Writer

_CHUNK = 4096  # blocks encoded in one call
_WIDTH_STEP, _CAPACITY_STEP = 64, 128  # ids; sizes are rounded up to these, so that few shapes are compiled


class Turn(NamedTuple):
    """An answer and the messages behind it, as indices into the conversation."""

    answer: int
    replies: range


@dataclasses.dataclass(frozen=True)
class Script:
    """A conversation, split into what `reset`, `step` and `append` write."""

    number: int  # which conversation of the input, from 1
    line: int  # of its file, from 1
    kinds: tuple[int, ...]  # a `Role` for each message, a configured system prompt included
    contents: tuple[Content, ...]
    prompt: int  # messages in the first prompt
    turns: tuple[Turn, ...]
    configured: bool  # the first message is the configured system prompt
    sizes: tuple[int, ...] = ()  # ids of the first prompt and of each block behind it
    ends: tuple[int, ...] = (0,)  # ids in the conversation after each of them

    @property
    def total(self) -> int:
        """Ids of the whole conversation."""
        return self.ends[-1]

    def neighbours(self, index: int) -> tuple[int, int]:
        """The kinds before and after a message; behind the last one, and before an answer, stands GENERATE."""
        after = self.kinds[index + 1] if index + 1 < len(self.kinds) else int(Kind.ASSISTANT)
        return self.kinds[index - 1], int(Kind.GENERATE) if after in ANSWERS else after

    def size(self, index: int) -> int:
        """Ids of the block of message ``index``, which stands behind the first prompt."""
        return self.sizes[index - self.prompt + 1]

    def start(self, index: int) -> int:
        """Ids in the conversation before that block."""
        return self.ends[index - self.prompt]


class Widths(NamedTuple):
    """Limits for `make_config` that hold the data."""

    capacity: int
    max_messages: int
    max_message_len: int
    max_prompt_len: int
    max_response_len: int
    max_turns: int


def scripts_of(records: Sequence[Record], system: str | None) -> list[Script]:
    """Conversations split into first prompt and turns, with ``system`` in front where they have no system message."""
    scripts = []
    for number, record in enumerate(records, 1):
        configured = system is not None and record.kinds[0] != Role.SYSTEM
        kinds = (int(Role.SYSTEM), *record.kinds) if configured else record.kinds
        contents = (str(system), *record.contents) if configured else record.contents
        prompt = record.prompt + configured
        answers = [i for i in range(prompt, len(kinds)) if kinds[i] in ANSWERS]
        turns = tuple(Turn(a, range(a + 1, b)) for a, b in itertools.pairwise([*answers, len(kinds)]))
        scripts.append(Script(number, record.line, kinds, contents, prompt, turns, configured))
    return scripts


def measured(scripts: Sequence[Script], writer: Writer, name: str) -> list[Script]:
    """The same scripts with their sizes, all blocks encoded in a few calls.

    Raises InputError where the template cannot write a conversation, with the first such line and how many more.
    """
    drafts: list[Draft] = []
    faults: list[tuple[int, str]] = []
    for script in scripts:
        try:
            drafts += list(_drafts(script, writer))
        except ValueError as error:
            faults.append((script.line, str(error)))
    if faults:
        line, reason = faults[0]
        more = f" ({len(faults) - 1} more conversations fail as well)" if len(faults) > 1 else ""
        raise InputError(f"{name}:{line}: {reason}{more}")
    chunks = (drafts[i : i + _CHUNK] for i in range(0, len(drafts), _CHUNK))
    sizes = iter([len(written.ids) for chunk in chunks for written in writer.write(chunk)])
    return [_sized(s, tuple(next(sizes) for _ in range(1 + len(s.kinds) - s.prompt)), writer) for s in scripts]


def widths_of(scripts: Sequence[Script], capacity: int | None) -> Widths:
    """Limits that hold every conversation; no more than a ``capacity`` that is given, in any width."""
    answers = [s.size(t.answer) for s in scripts for t in s.turns]
    replies = [s.size(i) for s in scripts for t in s.turns for i in t.replies]
    needed = _up(max(s.total for s in scripts), _CAPACITY_STEP)
    capacity = needed if capacity is None else min(capacity, needed)
    return Widths(
        capacity=capacity,
        max_messages=max(len(s.kinds) for s in scripts) + 1,
        max_message_len=min(_up(max(replies, default=1), _WIDTH_STEP), capacity),
        max_prompt_len=min(_up(max(s.sizes[0] for s in scripts), _WIDTH_STEP), capacity),
        max_response_len=min(_up(max(answers, default=1), _WIDTH_STEP), capacity),
        max_turns=max(len(s.turns) for s in scripts) + 1,
    )


def batches_of(scripts: Sequence[Script], batch: int) -> list[list[Script]]:
    """Batches of conversations with about as many turns, the last one ragged; longest first."""
    order = sorted(scripts, key=lambda s: (-len(s.turns), -s.total))
    return [order[i : i + batch] for i in range(0, len(order), batch)]


def _drafts(script: Script, writer: Writer) -> Iterator[Draft]:
    yield writer.prompt(script.kinds[: script.prompt], script.contents[: script.prompt])
    for index in range(script.prompt, len(script.kinds)):
        kind, content = script.kinds[index], script.contents[index]
        if kind in ANSWERS:
            yield writer.answer(content, calls=writer.calls_tools(content))
        else:
            before, after = script.neighbours(index)
            yield writer.message(kind, content, before, after)


def _sized(script: Script, sizes: tuple[int, ...], writer: Writer) -> Script:
    known = dict(writer.template.shifts) if writer.template.stop_ids else {}
    shifts = [0] * len(script.kinds)
    for turn in script.turns:
        if turn.replies:
            shifts[turn.answer + 1] = known.get(script.kinds[turn.answer], 0)
    written = [size - less for size, less in zip(sizes, [0, *shifts[script.prompt :]], strict=True)]
    return dataclasses.replace(script, sizes=sizes, ends=tuple(itertools.accumulate(written)))


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
