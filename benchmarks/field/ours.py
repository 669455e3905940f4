"""StatelessChat: turns of ids in a scan and from Python, and turns of text."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from core import ANSWER, REPLY, TURNS, Turns

import statelesschat as sc
from field import work
from field.contest import Contestant
from statelesschat.core.types import Count

assert (ANSWER, REPLY, TURNS) == (work.ANSWER_IDS, work.REPLY_IDS, work.TOKEN_TURNS)


def contestants(options: work.Options) -> dict[str, Contestant]:
    """Ids over the batch of ids, text over the batch of texts."""
    return {
        "scan": Scan(options.batch),
        "ragged scan": RaggedScan(options.batch),
        "calls": Calls(options.batch),
        "ragged calls": RaggedCalls(options.batch),
        "text": Text(options.text_batch),
    }


@functools.partial(jax.jit, donate_argnums=0)
def turn(states: sc.ChatState, action: sc.Action, message: sc.Message) -> sc.ChatState:
    """Answer in, reply out, next prompt ready."""
    return jax.vmap(sc.append)(jax.vmap(sc.step)(states, action), message)


class Scan(Contestant):
    """The turns of `benchmarks/core.py`: one scan over them, states donated."""

    def __init__(self, batch: int) -> None:
        self.loop, self.turns = Turns(batch), TURNS

    def prepare(self) -> None:
        """Back to the first prompt."""
        self.loop.prepare()

    def run(self) -> None:
        """All turns."""
        self.loop()

    def check(self) -> None:
        """Every row took every turn."""
        self.loop.check()


class RaggedScan(Scan):
    """Answers of different lengths; none ends in its stop id, so the reply's block brings it."""

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.lengths = np.asarray(work.answer_lengths(batch), np.int32)
        actions, messages = self.loop.inputs
        tokens = actions.tokens.at[..., -1].set(actions.tokens[..., 0])
        actions = dataclasses.replace(actions, tokens=tokens, length=jax.numpy.asarray(self.lengths))
        self.loop.inputs = (actions, messages)

    def check(self) -> None:
        """Every row has every id."""
        begin = self.loop.counts[:, int(Count.LENGTH)]
        expected = begin + self.lengths.sum(0) + self.turns * (REPLY + 1)
        assert np.asarray(self.loop.states.length).tolist() == expected.tolist()


class _FromPython:
    """The same turns, one jitted call each; the blocks lie on the device, where a policy leaves them."""

    loop: Turns

    @functools.cached_property
    def blocks(self) -> list[Any]:
        """Each turn's answers and replies."""
        return [jax.block_until_ready(jax.tree.map(lambda x, i=i: x[i], self.loop.inputs)) for i in range(TURNS)]

    def run(self) -> None:
        """All turns."""
        states = self.loop.states
        for action, message in self.blocks:
            states = turn(states, action, message)
        self.loop.states = jax.block_until_ready(states)


class Calls(_FromPython, Scan):
    """Answers of one length, from Python."""


class RaggedCalls(_FromPython, RaggedScan):
    """Answers of different lengths, from Python."""


class Text(Contestant):
    """Text in, text out: both texts of the turn encoded, step, append, and the answer read back as text."""

    def __init__(self, batch: int) -> None:
        self.texts, self.turns = work.Texts(batch), work.TEXT_TURNS
        self.tokenizer: Any = work.load_tokenizer()
        config = sc.make_config(
            self.tokenizer,
            capacity=2048,
            max_messages=2 * self.turns + 2,
            max_message_len=192,
            max_response_len=256,
            max_turns=self.turns + 1,
        )
        self.codec = sc.Codec(self.tokenizer, config)
        self.first = self.codec.encode(self.texts.questions)

    def prepare(self) -> None:
        """Back to the first prompt."""
        blank = sc.init(self.codec.config)
        self.states = jax.block_until_ready(jax.vmap(sc.reset, (None, 0))(blank, self.first))

    def run(self) -> None:
        """All turns."""
        for answers, replies in zip(self.texts.answers, self.texts.replies, strict=True):
            action = self.codec.encode_actions(answers)
            message = self.codec.encode_messages("user", replies)
            self.states = turn(self.states, action, message)
            self.read = self.codec.decode_responses(self.states)
        jax.block_until_ready(self.states)

    def check(self) -> None:
        """The last prompt is the one that the template gives, and what was read back is what was said."""
        tokens, lengths = np.asarray(self.states.tokens), np.asarray(self.states.length)
        ids = [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
        assert ids == self.texts.last_prompts(self.tokenizer) and self.read == self.texts.answers[-1]
