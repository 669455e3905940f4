"""Chat templates made by hand, so that the core is tested without a tokenizer.

Ids: 0 pad, 2 eos, 7 ``<|im_start|>``, 8 ``<|im_end|>``, 10 newline, 20 to 23 the names of user, system, assistant and
tool; contents are 30 and above.
"""

import dataclasses
from typing import Any

import numpy as np
from hypothesis import settings

from statelesschat import Action, ChatConfig, ChatData, ChatTemplate, Kind, Message
from statelesschat.core.config import Gap
from statelesschat.core.types import Column, Finish

PAD, EOS, START, END, NEWLINE = 0, 2, 7, 8, 10
NAMES = {Kind.USER: 20, Kind.SYSTEM: 21, Kind.ASSISTANT: 22, Kind.TOOL: 23}
_ORDER = (
    (Kind.START, Kind.SYSTEM), (Kind.START, Kind.USER), (Kind.SYSTEM, Kind.USER), (Kind.USER, Kind.USER),
    (Kind.USER, Kind.ASSISTANT), (Kind.USER, Kind.GENERATE), (Kind.ASSISTANT, Kind.USER),
    (Kind.ASSISTANT, Kind.TOOL), (Kind.TOOL, Kind.TOOL), (Kind.TOOL, Kind.USER), (Kind.TOOL, Kind.ASSISTANT),
    (Kind.TOOL, Kind.GENERATE),
)  # fmt: skip


def gap(previous: int, next: int, trail: tuple[int, ...], core: tuple[int, ...], lead: tuple[int, ...]) -> Gap:
    """A gap of ids; its texts have one character for each soft id."""
    return Gap(int(previous), int(next), "t" * len(trail), "", "l" * len(lead), trail, core, lead)


def template(gaps: tuple[Gap, ...], **options: Any) -> ChatTemplate:
    """A template of these gaps; ChatML's stop ids unless told otherwise."""
    values: dict[str, Any] = {field.name: "" for field in dataclasses.fields(ChatTemplate)} | {
        "kind": "EXACT",
        "roles": ("system", "user", "assistant", "tool"),
        "transforms": ("identity",) * 4,
        "nonempty": (False,) * 4,
        "stop_ids": (END, EOS),
        "stop_id": END,
        "closing_ids": (),
        "rest_core_ids": (),
        "shifts": ((int(Kind.ASSISTANT), 1),),
        "pad_id": PAD,
        "vocab_size": 100,
        "options": (),
        "piece_encoding": "plain",
        "trusted_control_tokens": False,
    }
    chosen: dict[str, Any] = values | {"gaps": gaps} | options
    return ChatTemplate(**chosen)


def _chatml_gaps(trail: tuple[int, ...] = ()) -> tuple[Gap, ...]:
    gaps = []
    for previous, next in _ORDER:
        name = NAMES[Kind.ASSISTANT if next == Kind.GENERATE else next]
        core = (START,) if previous == Kind.START else (END, NEWLINE, START)
        gaps.append(gap(previous, next, trail if previous == Kind.ASSISTANT else (), core, (name, NEWLINE)))
    return tuple(gaps)


def chatml(**options: Any) -> ChatTemplate:
    """``<|im_start|>role\\n … <|im_end|>\\n``."""
    return template(_chatml_gaps(), **options)


def pad_is_eos() -> ChatTemplate:
    """ChatML in a vocabulary that pads with eos, which also ends answers."""
    return chatml(pad_id=EOS)


def long_closing() -> ChatTemplate:
    """ChatML with a newline between an answer and its ``<|im_end|>``: a sampled stop id makes two ids redundant."""
    return template(_chatml_gaps((NEWLINE,)), closing="t", closing_ids=(NEWLINE,), shifts=((int(Kind.ASSISTANT), 2),))


def mistral() -> ChatTemplate:
    """``<s>[INST] … [/INST] … </s>[INST]``: one-id headers and gaps without soft text."""
    begin, end = 3, 4
    gaps = (
        gap(Kind.START, Kind.USER, (), (1, begin), ()),
        gap(Kind.USER, Kind.ASSISTANT, (), (end,), ()),
        gap(Kind.USER, Kind.GENERATE, (), (end,), ()),
        gap(Kind.ASSISTANT, Kind.USER, (), (EOS, begin), ()),
    )
    return template(gaps, stop_ids=(EOS,), stop_id=EOS)


def config(template: ChatTemplate | None = None, **options: Any) -> ChatConfig:
    """Small widths, so that a few transitions reach every limit."""
    values: dict[str, Any] = {
        "capacity": 64,
        "max_messages": 8,
        "max_message_len": 12,
        "max_prompt_len": 24,
        "max_response_len": 8,
        "max_turns": 4,
    }
    return ChatConfig(chatml() if template is None else template, **(values | options))


def padded(ids: Any, width: int, dtype: Any = np.int32, fill: int = 77) -> Any:
    """The values in an array of ``width``, with junk behind: what lies beyond a length must not matter."""
    out = np.full(width, fill, dtype)
    out[: len(ids)] = ids
    return out


def examples(scale: float) -> int:
    """How many examples a property test tries, in proportion to the profile."""
    profile = settings.default
    assert profile is not None
    return max(int(profile.max_examples * scale), 3)


def int32(value: int) -> Any:
    """A scalar as the types hold it."""
    return np.int32(value)


def flag(value: bool) -> Any:
    """A truth value as the types hold it."""
    return np.bool_(value)


def action(ids: Any, finished: bool = True, logprobs: Any = None, width: int = 8, length: int | None = None) -> Action:
    """An `Action` of these ids; ``length`` may claim another number of them."""
    length = len(ids) if length is None else length
    probs = None if logprobs is None else padded(logprobs, width, np.float32)
    return Action(padded(ids, width), int32(length), probs, flag(finished))


def prompt(
    messages: Any, *, next: int = Kind.GENERATE, width: int = 24, rows: int = 8, turn_limit: int = 4, info: Any = None
) -> ChatData:
    """A `ChatData` of whole blocks: ``(kind, ids)`` or ``(kind, ids, finish)`` each, answers with their stop id."""
    table: Any = np.full((rows, len(Column)), -1, np.int32)
    ids: list[int] = []
    kinds = [int(m[0]) for m in messages]
    for index, message in enumerate(messages):
        kind, block = message[:2]
        finish = message[2] if len(message) > 2 else Finish.NONE
        end = len(ids) + len(block) - int(finish == Finish.STOP)
        previous = kinds[index - 1] if index else Kind.START
        following = kinds[index + 1] if index + 1 < len(kinds) else next
        table[index] = kind, len(ids), len(ids), end, 0, 0, previous, following, -1, finish
        ids += block
    return ChatData(padded(ids, width), int32(len(ids)), table, int32(turn_limit), info)


def message(
    ids: Any, kind: int, previous: int, next: int, *, span: tuple[int, int] = (0, 0), width: int = 12
) -> Message:
    """A `Message` whose block is these ids, with its content's piece at ``span``."""
    header: Any = np.array([kind, *span, 0, 0, previous, next], np.int32)
    return Message(padded(ids, width), int32(len(ids)), header)


def question(
    config: ChatConfig, *ids: int, width: int = 24, turn_limit: int | None = None, info: Any = None
) -> ChatData:
    """The first prompt of one user message as the template writes it, with its generation prompt."""
    template = config.template
    before, after = template.gap(Kind.START, Kind.USER), template.gap(Kind.USER, Kind.GENERATE)
    block = [*before.core_ids, *before.lead_ids, *ids, *after.trail_ids, *after.core_ids, *after.lead_ids]
    limit = config.max_turns if turn_limit is None else turn_limit
    return prompt([(Kind.USER, block)], width=width, rows=2, turn_limit=limit, info=info)


def reply(config: ChatConfig, *ids: int, role: int = Kind.USER, next: int = Kind.GENERATE, width: int = 12) -> Message:
    """A message after an answer as the template writes it."""
    before, after = config.template.gap(Kind.ASSISTANT, role), config.template.gap(role, next)
    head = [*before.trail_ids, *before.core_ids, *before.lead_ids]
    tail = [*after.trail_ids, *after.core_ids, *after.lead_ids] if next == Kind.GENERATE else [*after.trail_ids]
    start, end = len(head) - len(before.lead_ids), len(head) + len(ids) + len(after.trail_ids)
    return message([*head, *ids, *tail], int(role), Kind.ASSISTANT, next, span=(start, end), width=width)
