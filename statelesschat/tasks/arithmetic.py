"""Arithmetic: sums and differences made by rule, with another try after a wrong answer."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float

from statelesschat.core.types import Action, ChatState, Message
from statelesschat.data.rows import Table
from statelesschat.envs.combinators import with_reply, with_reward
from statelesschat.envs.env import Env, chat_env
from statelesschat.rewards.tokens import TokenBytes
from statelesschat.tasks.judging import numeric_reward
from statelesschat.tasks.task import Task, assemble, codec_for, gold_numbers, on_device, text_at
from statelesschat.text.codec import Codec

SYSTEM_PROMPT = "Answer with a number."
RETRY = "Wrong. Try again."
_LIMIT = 10**9  # of an operand
_ENUMERATED = 2**22  # problems, from which on they are drawn, not enumerated


class Problem(NamedTuple):
    """``first operator second``."""

    first: int
    operator: str
    second: int

    @property
    def question(self) -> str:
        """As it is asked."""
        return f"What is {self.first} {self.operator} {self.second}?"

    @property
    def answer(self) -> int:
        """What is right."""
        return self.first + self.second if self.operator == "+" else self.first - self.second


def make(
    tokenizer: Any,
    source: Any = None,
    *,
    split: Literal["train", "test"] = "train",
    max_operand: int = 99,
    seed: int = 0,
    rows: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Env, Table]:
    """Environment and table of sums and differences of two whole numbers from 0 to ``max_operand``.

    The reward of an answer whose number is right is 1.0, and the episode is over; after a wrong one, with reward 0.0,
    the policy is asked to try again, until ``max_turns`` answers (2) are given.

    Args:
        tokenizer: what `load_tokenizer` takes; or a `Codec`, whose config is then used as it is.
        source: how many problems, by default all of the split (but 65,536 at most); or rows of your own, as
            `gsm8k.make` takes them.
        split: ``"train"``, nine tenths of all problems, or ``"test"``, the others.
        max_operand: largest operand.
        seed: of the problems' order, and of which are taken.
        rows: options of `from_dataset` and its kin, for rows of your own.
        **options: of `make_config`; ``max_turns`` is how many tries there are.

    Returns:
        The environment; and the table, whose ``info.task`` is a `rewards.Number`.

    Example:
        >>> import jax, statelesschat as sc
        >>> env, table = sc.tasks.arithmetic.make(None, 4, split="test")
        >>> states = sc.begin(env, table, jax.random.key(0))
        >>> codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
        >>> codec.decode_history(states.chat)[0][-1]
        {'role': 'user', 'content': 'What is 40 - 42?'}
    """
    codec = codec_for(TASK, tokenizer, options)
    if source is None or isinstance(source, int):
        source = [{"question": p.question, "answer": p.answer} for p in problems(source, split, max_operand, seed)]
    return assemble(TASK, codec, source, rows or {})


def problems(count: int | None, split: str = "train", max_operand: int = 99, seed: int = 0) -> list[Problem]:
    """Problems of a split in an order that the seed sets, no two the same; ``count`` None: all, 65,536 at most.

    Which split a problem is in depends on the problem alone: a fixed hash of it puts one in ten into ``"test"``, and a
    sum together with the sum of the same numbers the other way round.

    Example:
        >>> len(problems(None)), len(problems(None, "test"))
        (18096, 1904)
    """
    if isinstance(max_operand, bool) or not isinstance(max_operand, int) or not 1 <= max_operand <= _LIMIT:
        raise ValueError(f"max_operand={max_operand!r}; give a whole number from 1 to {_LIMIT}")
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r}; give 'train' or 'test'")
    if count is not None and (isinstance(count, bool) or count < 1):
        raise ValueError(f"{count!r} problems; give 1 or more")
    side = max_operand + 1
    wanted = 65_536 if count is None else count
    chosen: dict[Problem, None] = {}
    for index in _indices(2 * side * side, seed):
        if len(chosen) == wanted:
            break
        problem = Problem(index // 2 // side, "+-"[index % 2], index // 2 % side)
        if problem not in chosen and _is_held_out(problem) == (split == "test"):
            chosen[problem] = None
    if count is not None and len(chosen) < count:
        raise ValueError(f"{count} problems, but split {split!r} has {len(chosen)} of operands up to {max_operand}")
    return list(chosen)


def _is_held_out(problem: Problem) -> bool:
    first, sign, second = problem
    if sign == "+":
        first, second = sorted((first, second))
    return _mixed(_mixed(first * 2 + (sign == "-")) ^ second) % 10 == 0


def _indices(total: int, seed: int) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    if total <= _ENUMERATED:
        yield from rng.permutation(total).tolist()
    while total > _ENUMERATED:
        yield from rng.integers(0, total, 4096).tolist()


def _mixed(index: int) -> int:
    """A fixed hash of an index (the finaliser of splitmix64, Steele et al., 2014)."""
    x = (index + 0x9E3779B97F4A7C15) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return x ^ (x >> 31)


def read_row(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Question and answer of a row."""
    return {"prompt": text_at(raw, "question"), "gold": text_at(raw, "gold", "answer")}


def make_env(codec: Codec, vocabulary: TokenBytes) -> Env:
    """An answer, judged; a wrong one is followed by another try."""
    message = on_device(codec.encode_messages("user", [RETRY]))
    message = Message(message.tokens[0, : int(message.length[0])], message.length[0], message.header[0])
    env = with_reward(chat_env(codec.config), Partial(numeric_reward, vocabulary))
    return with_reply(env, Partial(_try_again, message))


def _try_again(message: Message, state: ChatState, action: Action) -> tuple[Message, Bool[Array, ""]]:
    wrong: Float[Array, ""] = state.reward
    return message, wrong <= jnp.float32(0)


TASK = Task(
    name="arithmetic",
    about="sums and differences made by rule, with another try after a wrong answer",
    columns="question and gold or answer",
    system_prompt=SYSTEM_PROMPT,
    limits={
        "capacity": 320,
        "max_messages": 6,
        "max_message_len": 96,
        "max_prompt_len": 128,
        "max_response_len": 32,
        "max_turns": 2,
    },
    read=read_row,
    collate=gold_numbers,
    env=make_env,
)
