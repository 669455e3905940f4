"""Verification of a compiled template on random conversations, written turn by turn as the device would."""

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from statelesschat.core.config import ChatTemplate
from statelesschat.core.types import Kind
from statelesschat.text.fields import Content, Fields, ToolCall, text_part
from statelesschat.text.marks import Shape, results_behind
from statelesschat.text.reference import Reference, Sampled
from statelesschat.text.writer import ANSWERS, Draft, Writer, Written

_WORDS = (
    "the",
    "Sum",
    "is",
    "4",
    "12.5",
    "a",
    "caf\u00e9",
    "\u4f60\u597d",
    "\U0001f600",
    "x=y",
    "don't",
    "$3",
    "\u0416",
)
_ENDS = ("", ".", "}", "!", "\n", " ", "\n\n", "?\n", ")", "\t", "'s")
_STARTS = ("", "", "", " ", "\n", "\n\n", "  ", "\t", "-", "{", "# ", "'")
_NAMES = ("get_weather", "search", "add-2")
_KEYS = ("city", "query", "path")
_LONG = 30
_JOINS = (" ", " ", " ", "\n", "\n\n", "  ", ", ", "\n- ")
_THOUGHTS = ("<think>\n{}\n</think>\n\n{}", "<think>{}</think>{}", "<think>\n\n</think>\n\n{1}")


class Conversation(NamedTuple):
    """A conversation to try: its first ``prompt`` messages are the prompt, answers in ``cut`` have no stop token."""

    kinds: tuple[int, ...]
    contents: tuple[Content, ...]
    prompt: int
    cut: frozenset[int]


class Failure(NamedTuple):
    """Where a conversation and the template's own render part."""

    conversation: Conversation
    upto: int  # messages written when they parted
    level: str  # "order", "text" or "tokens"
    ours: str
    theirs: str


def random_content(rng: random.Random, empty: bool, thought: bool = False) -> str:
    """A short text with the seams that tokenizers and templates get wrong."""
    if empty and rng.random() < 0.08:
        return ""
    words = [rng.choice(_WORDS)]
    for _ in range(rng.randrange(6)):
        words += [rng.choice(_JOINS), rng.choice(_WORDS)]
    text = rng.choice(_STARTS) + "".join(words) + rng.choice(_ENDS)
    if thought and rng.random() < 0.3:
        return rng.choice(_THOUGHTS).format(rng.choice(_WORDS), text)
    return text


def random_conversations(
    rng: random.Random, chains: Iterable[Sequence[int]], template: ChatTemplate, thoughts: bool
) -> list[Conversation]:
    """One random conversation for each role sequence; what cannot be appended stands in the prompt."""
    nonempty = template.nonempty
    fixed = {(gap.previous, gap.next) for gap in template.gaps if not gap.appendable}
    made = []
    frozen = template.kind == "FROZEN_HISTORY"
    for kinds in chains:
        if len(kinds) > _LONG:  # looked at near its end only: many turns, and the same contents again and again
            same = ("the same", template.opened + "4") * (len(kinds) // 2) + ("4",)
            if frozen:  # one that looks for the last message by its content writes such a conversation otherwise
                same = tuple(f"{text} {i}" for i, text in enumerate(same))
            made.append(Conversation(tuple(kinds), same, len(kinds) - 2, frozenset()))
            continue
        opened = [template.opened if k == Kind.ASSISTANT else "" for k in kinds]
        contents: list[Content] = [
            start + random_content(rng, k == Kind.CALL or not nonempty[k], thoughts and k == Kind.ASSISTANT)
            for k, start in zip(kinds, opened, strict=True)
        ]
        if template.calls:
            _add_calls(rng, kinds, contents, template)
        answers = [i for i, k in enumerate(kinds) if k in ANSWERS]
        prompt = rng.choice([*answers, *(i + 1 for i in answers), len(kinds)]) or len(kinds)
        if frozen and Kind.CALL in kinds:  # of earlier calls such a template may show less
            prompt = kinds.index(Kind.CALL)
        if any((int(a), int(b)) in fixed for a, b in itertools.pairwise(kinds[prompt - 1 :])):
            prompt = len(kinds)
        cut = frozenset(i for i in answers if i >= prompt and rng.random() < 0.25)
        made.append(Conversation(tuple(kinds), tuple(contents), prompt, cut))
    return made


def _add_calls(rng: random.Random, kinds: Sequence[int], contents: list[Content], template: ChatTemplate) -> None:
    """Turn contents into messages with calls, and into results that refer to them."""
    shape, opened = Shape(*template.calls), template.opened
    for index, kind in enumerate(kinds):
        if kind == Kind.TOOL and isinstance(contents[index], str) and shape.refers:
            contents[index] = Fields(text_part(contents[index]), (), rng.choice(_NAMES), f"{rng.randrange(10**9):09d}")
        if kind != Kind.CALL:
            continue
        results = results_behind(kinds, index)
        calls = [_random_call(rng) for _ in results or [index]]
        says = shape.said and (opened or rng.random() < 0.4)
        contents[index] = Fields(opened + text_part(contents[index]) if says else "", tuple(calls))
        for i, call in zip(results, calls, strict=False):
            contents[i] = Fields(text_part(contents[i]), (), call.name, call.id)


def _random_call(rng: random.Random) -> ToolCall:
    values: dict[str, Any] = {key: random_content(rng, True) for key in rng.sample(_KEYS, rng.randrange(3))}
    if rng.random() < 0.5:
        values["options"] = rng.choice([3, -0.5, True, None, ["a", 2], {"deep": {"er": "x y"}}, []])
    return ToolCall(rng.choice(_NAMES), json.dumps(values, ensure_ascii=False), f"{rng.randrange(10**9):09d}")


def verify(writer: Writer, conversations: Sequence[Conversation]) -> Failure | None:
    """The first failure, or None where all conversations equal the template's own renders."""
    plans: list[tuple[Conversation, list[tuple[int, Draft]]]] = []
    for conversation in conversations:
        try:
            plans.append((conversation, _plan(writer, conversation)))
        except ValueError as error:
            return Failure(conversation, 0, "order", str(error), "")
    drafts = [draft for _, steps in plans for _, draft in steps]
    written = iter(writer.write(drafts))
    reference = Reference(writer)
    for conversation, steps in plans:
        blocks = [(upto, next(written)) for upto, _ in steps]
        failure = _compare(writer, reference, conversation, blocks)
        if failure is not None:
            return failure
    return None


def _plan(writer: Writer, conversation: Conversation) -> list[tuple[int, Draft]]:
    """The prompt, then each answer and message, with the number of messages written after it."""
    kinds, contents, prompt, cut = conversation
    steps = [(prompt, writer.prompt(kinds[:prompt], contents[:prompt]))]
    for index in range(prompt, len(kinds)):
        if kinds[index] in ANSWERS:
            steps.append((index + 1, writer.answer(contents[index], stop=index not in cut)))
        else:
            following = Kind.GENERATE
            if index + 1 < len(kinds) and kinds[index + 1] not in ANSWERS:
                following = kinds[index + 1]
            draft = writer.message(kinds[index], contents[index], kinds[index - 1], following)
            steps.append((index + 1, draft))
    return steps


def _compare(
    writer: Writer, reference: Reference, conversation: Conversation, blocks: Sequence[tuple[int, Written]]
) -> Failure | None:
    kinds, contents, prompt, cut = conversation
    template = writer.template
    frozen = template.kind == "FROZEN_HISTORY"
    ids: list[int] = []
    since = 0
    sampled: dict[int, Sampled] = {}
    for upto, block in blocks:
        answers = [i for i in range(upto) if kinds[i] in ANSWERS]
        in_answer = kinds[upto - 1] in ANSWERS
        before = kinds[upto - 2] if upto > prompt else Kind.NONE
        follows = before in ANSWERS and (upto - 2) not in cut and template.stop_id >= 0
        closed = len(template.closing_of(before)[1]) + 1 if follows and not in_answer else 0
        ids += block.ids[closed:]
        if upto > prompt and in_answer:
            sampled[upto - 1] = Sampled(block.ids, (upto - 1) not in cut and template.stop_id >= 0)
            since = len(ids)
        if upto == prompt and in_answer and frozen:
            sampled[upto - 1] = Sampled((), True)  # its header is that of a last message, so it stays as it is
            since = len(ids)
        waits = upto < len(kinds) and kinds[upto] not in ANSWERS and not in_answer
        if waits or (in_answer and (frozen or upto <= prompt)):
            continue
        try:
            if in_answer and kinds[upto - 1] == Kind.CALL:
                continue  # the template may end a call otherwise while its results are missing
            if in_answer:
                last = upto - 1
                told = writer.render(kinds[:last], contents[:last], True)
                told += template.rest_core + template.rest_lead
                told += writer.written(kinds[last], contents[last]).text.removeprefix(template.opened)
                whole = writer.render(kinds[:upto], contents[:upto], False)
                if not whole.startswith(told):
                    return Failure(conversation, upto, "text", told, whole[: len(told) + 40])
                continue
            if not frozen:
                texts = reference.parts(kinds[:upto], contents[:upto], answers)
                said = [writer.written(kinds[i], contents[i]).text for i in answers]
                told = "".join(a + b for a, b in zip(texts, [*said, ""], strict=True))
                whole = writer.render(kinds[:upto], contents[:upto], True)
                if told != whole:
                    return Failure(conversation, upto, "text", told, whole)
            theirs = reference.prompt_ids(kinds[:upto], contents[:upto], sampled)
        except ValueError as error:
            return Failure(conversation, upto, "order", "", str(error))
        ours = ids[since:] if frozen and sampled else ids
        if ours != theirs:
            texts = [writer.pieces.full.decode(x, skip_special_tokens=False) for x in (ours, theirs)]
            return Failure(conversation, upto, "tokens" if texts[0] == texts[1] else "text", *texts)
    return None


def chains_of(pairs: set[tuple[int, int]], rng: random.Random, count: int, length: int) -> list[tuple[int, ...]]:
    """Random role sequences that use only these pairs, begin at the start and end where an answer can follow."""
    nexts: dict[int, list[int]] = {}
    for previous, next in sorted(pairs):
        nexts.setdefault(previous, []).append(next)
    final = {previous for previous, next in pairs if next == Kind.GENERATE}
    chains = []
    for _ in range(count * 20):
        chain: list[int] = []
        current, target = int(Kind.START), rng.randint(1, length)
        while len(chain) < target + 4 and not (len(chain) >= target and current in final):
            options = [n for n in nexts.get(current, []) if n != Kind.GENERATE]
            if not options:
                break
            current = rng.choice(options)
            chain.append(current)
        if chain and chain[-1] in final:
            chains.append(tuple(chain))
        if len(chains) == count:
            break
    return chains
