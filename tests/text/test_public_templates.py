"""All public templates: each is compiled, and every prompt it writes on the device compared with transformers' own."""

import collections
import random
import time
import zlib
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import statelesschat as sc
from statelesschat.text.fields import Fields
from statelesschat.text.verify import Conversation, random_conversations
from tests.text import public

ASSISTANT, CALL, GENERATE, START = sc.Kind.ASSISTANT, sc.Kind.CALL, sc.Kind.GENERATE, sc.Kind.START
SYSTEM, USER, TOOL = sc.Kind.SYSTEM, sc.Kind.USER, sc.Kind.TOOL
LIMITS: dict[str, Any] = {
    "capacity": 32768,
    "max_messages": 16,
    "max_message_len": 8192,
    "max_prompt_len": 16384,
    "max_turns": 8,
}
CHAINS = [
    (USER,),
    (USER, ASSISTANT, USER),
    (SYSTEM, USER, ASSISTANT, USER),
    (USER, ASSISTANT, USER, ASSISTANT, USER, ASSISTANT, USER),
    (USER, ASSISTANT, TOOL, ASSISTANT, USER),
    (USER, CALL, TOOL, ASSISTANT, USER, CALL, TOOL),
    (SYSTEM, USER, CALL, TOOL, TOOL, ASSISTANT, USER),
    (USER, USER, ASSISTANT, USER),
]
EXACT = ("EXACT", "EXACT_CHAT", "GAPS_EXACT")


class Outcome(NamedTuple):
    """What became of a template."""

    kind: str  # its class, or "refused", or "unusable"
    prompts: int = 0  # compared
    wrong: tuple[str, ...] = ()  # what differed
    seconds: float = 0.0  # to compile
    reason: str = ""


def outcome(name: str) -> Outcome:
    """Compile a template, with frozen history if it has to be, and compare what it writes."""
    tokenizer = public.tokenizer(name)
    if not usable(tokenizer):
        return Outcome("unusable")
    begin = time.perf_counter()
    try:
        template = sc.compile_template(tokenizer)
    except sc.TemplateError as error:
        if not error.usable:
            return Outcome("unusable")
        if error.kind != "FROZEN_HISTORY":
            assert error.witness is not None or "added token" in error.reason, error.reason
            return Outcome("refused", seconds=time.perf_counter() - begin, reason=error.reason)
        assert error.witness is not None
        template = sc.compile_template(tokenizer, history="frozen")
    seconds = time.perf_counter() - begin
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, chat_template=template, **LIMITS))
    pairs = {(gap.previous, gap.next) for gap in template.gaps}
    chains = [c for c in CHAINS if set(zip((START, *c), (*c, GENERATE), strict=True)) <= pairs]
    assert len(chains) >= 2
    wrong, count = [], 0
    rng = random.Random(zlib.crc32(name.encode()))
    for talk in random_conversations(rng, chains, template, thoughts=template.kind != "FROZEN_HISTORY"):
        for problem in differences(codec, talk):
            count += 1
            wrong += [problem] if problem else []
    return Outcome(template.kind, count, tuple(wrong), seconds)


def usable(tokenizer: Any) -> bool:
    """Whether a template writes a plain text message without variables, parts or images."""
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": "7103917"}], tokenize=False)
        past = tokenizer.apply_chat_template(
            [
                {"role": r, "content": c}
                for r, c in (("user", "7103917"), ("assistant", "7103918"), ("user", "7103919"))
            ],
            tokenize=False,
        )
    except Exception:
        try:  # one that cannot go on behind an answer is refused, not unusable
            tokenizer.apply_chat_template([{"role": "user", "content": "7103917"}], tokenize=False)
        except Exception:
            return False
        return True
    return "7103917" in text and "7103919" in past


def differences(codec: sc.Codec, talk: Conversation):
    """For each prompt of a conversation None, or what is wrong with it; the device runs op by op."""
    messages = codec.writer.render.messages(talk.kinds, talk.contents)
    state = sc.reset(sc.init(codec.config), first(codec.encode([messages[: talk.prompt]])))
    begin = 0
    if talk.kinds[talk.prompt - 1] not in (ASSISTANT, CALL):
        yield difference(codec, talk, talk.prompt, state, begin)
    else:
        begin = int(state.length)  # an answer at the end of a prompt has the form of a last one, and keeps it
    for index in range(talk.prompt, len(talk.kinds)):
        kind, content = talk.kinds[index], talk.contents[index]
        if kind in (ASSISTANT, CALL):
            answer = messages[index] if kind == CALL else content
            action = first(codec.encode_actions([answer], stop=index not in talk.cut))
            state = sc.step(state, action)
            begin = int(state.length)
            continue
        asked = index + 1 == len(talk.kinds) or talk.kinds[index + 1] in (ASSISTANT, CALL)
        told: Any = content
        if isinstance(content, Fields):
            told = {"content": content.content, "name": content.name, "tool_call_id": content.call_id}
        following = "generate" if asked else sc.Kind(talk.kinds[index + 1])
        block = codec.encode_messages(sc.Role(kind), [told], previous=sc.Kind(talk.kinds[index - 1]), next=following)
        state = sc.append(state, first(block))
        if int(state.status) != sc.Status.OK:
            yield f"status {sc.Status(int(state.status)).name} after message {index}"
            return
        if asked:
            yield difference(codec, talk, index + 1, state, begin)


def difference(codec, talk: Conversation, upto: int, state: sc.ChatState, begin: int):
    """What is wrong with the ids of a prompt, which are those of transformers' own render: all of them, or behind the
    last answer under a template that rewrites history. A byte vocabulary merges nothing, so ids are the text's.
    """
    ours = np.asarray(state.tokens)[: int(state.length)].tolist()
    messages = codec.writer.render.messages(talk.kinds[:upto], talk.contents[:upto])
    whole = codec.tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    theirs = whole
    if codec.config.template.kind == "FROZEN_HISTORY":
        ours = ours[begin:]
        theirs = whole[len(whole) - len(ours) :]
    if ours == theirs:
        return None
    decode = codec.tokenizer.decode
    return f"{talk.kinds[:upto]}: {decode(ours)[-300:]!r} is not {decode(theirs)[-300:]!r}"


def first(batch):
    return jax.tree.map(lambda leaf: leaf[0], batch)


def check(names: list[str]) -> dict[str, Outcome]:
    """All outcomes; fails with every wrong token there is."""
    outcomes = {name: outcome(name) for name in names}
    assert not {name: o.wrong[0] for name, o in outcomes.items() if o.wrong}
    assert all(o.prompts >= 2 for o in outcomes.values() if o.kind in (*EXACT, "FROZEN_HISTORY"))
    return outcomes


def shares(outcomes: dict[str, Outcome]) -> tuple[float, float]:
    """Of the usable templates: those that compile at all, and those that compile without frozen history."""
    kinds = collections.Counter(o.kind for o in outcomes.values())
    count = len(outcomes) - kinds["unusable"]
    exact = sum(kinds[kind] for kind in EXACT)
    return (exact + kinds["FROZEN_HISTORY"]) / count, exact / count


def test_a_sample_of_forty() -> None:
    names = public.names()[::19][:40]
    compiled, exact = shares(check(names))
    assert compiled >= 0.85
    assert exact >= 0.55


@pytest.mark.slow
def test_all() -> None:
    outcomes = check(public.names())
    compiled, exact = shares(outcomes)
    kinds = collections.Counter(o.kind for o in outcomes.values())
    seconds = sorted(o.seconds for o in outcomes.values() if o.seconds)
    prompts = sum(o.prompts for o in outcomes.values())
    print(f"\n{dict(kinds)}; compiled {compiled:.3f}, exact {exact:.3f} of the usable; {prompts} prompts compared")
    print(f"seconds to compile: median {seconds[len(seconds) // 2]:.2f}, 90% {seconds[len(seconds) * 9 // 10]:.2f}")
    assert compiled >= 0.90
    assert exact >= 0.65
