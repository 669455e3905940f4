"""Countdown: reach a target with each of a few numbers once, by + - * / and brackets, one turn."""

import operator
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from statelesschat.core.types import Action, ChatState
from statelesschat.data.rows import Table
from statelesschat.envs.combinators import with_reward, with_stop
from statelesschat.envs.env import Env, chat_env
from statelesschat.rewards.expression import makes_target
from statelesschat.rewards.response import response_text
from statelesschat.rewards.text import between, cut, find_last
from statelesschat.rewards.tokens import TokenBytes
from statelesschat.tasks.judging import judged
from statelesschat.tasks.task import Task, assemble, codec_for
from statelesschat.text.codec import Codec

SYSTEM_PROMPT = (
    "Make the target with each of the numbers exactly once, using + - * / and brackets. Put the expression alone into "
    "tags: <answer>(1 + 2) * 3</answer>"
)
MOST, LARGEST, FARTHEST = 6, 9999, 2**24 - 1  # how many numbers, how large they, and how far the target
_PATIENCE = 2_000  # tries without a new puzzle, after which there are hardly any left
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


class Puzzle(NamedTuple):
    """Numbers, a target that they make, and one way to make it."""

    numbers: tuple[int, ...]
    target: int
    solution: str


class Given(NamedTuple):
    """``info.task``: what an expression is held against."""

    numbers: Int[Array, "6"]  # int32
    size: Int[Array, ""]  # int32, how many of them are given
    target: Int[Array, ""]  # int32


def make(
    tokenizer: Any,
    source: Any = 10_000,
    *,
    split: Literal["train", "test"] = "train",
    numbers: int = 4,
    seed: int = 0,
    rows: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Env, Table]:
    """Environment and table of countdown puzzles.

    The reward is 1.0 where the last ``<answer>…</answer>`` of the answer, behind its thoughts if it has any, is an
    expression that uses each number once and is exactly the target (`rewards.makes_target`), else 0.0; the episode is
    over after one answer.

    Args:
        tokenizer: what `load_tokenizer` takes; or a `Codec`, whose config is then used as it is.
        source: how many puzzles to make, all of which have a solution; or rows of your own (a JSONL file, a dataset, an
            iterable of dicts) with ``nums`` or ``numbers`` (1 to 6 whole numbers up to 9,999) and ``target``.
        split: ``"train"`` or ``"test"``, which have no puzzle in common.
        numbers: how many numbers a made puzzle has, 2 to 6.
        seed: of the puzzles.
        rows: options of `from_dataset` and its kin, for rows of your own.
        **options: of `make_config`.

    Returns:
        The environment; and the table, whose ``info.task`` is a `Given`.

    Example:
        >>> import jax, statelesschat as sc
        >>> env, table = sc.tasks.countdown.make(None, [{"nums": [3, 3, 8, 8], "target": 24}])
        >>> states = sc.begin(env, table, jax.random.key(0))
        >>> codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
        >>> jax.vmap(env.step)(states, codec.encode_actions(["<answer>8 / (3 - 8/3)</answer>"])).reward.tolist()
        [1.0]
    """
    codec = codec_for(TASK, tokenizer, options)
    if isinstance(source, int):
        made = puzzles(source, split, numbers, seed)
        source = [{"nums": list(p.numbers), "target": p.target} for p in made]
    return assemble(TASK, codec, source, rows or {})


def puzzles(count: int, split: str = "train", numbers: int = 4, seed: int = 0) -> list[Puzzle]:
    """Puzzles with numbers from 1 to 99 and a target from 1 to 999 that whole-number steps reach; no two the same.

    Which split a puzzle is in depends on its numbers and target alone; one in ten is in ``"test"``.

    Example:
        >>> puzzles(1)[0]
        Puzzle(numbers=(47, 16, 20, 25), target=855, solution='((25 * 47) - (16 * 20))')
    """
    if isinstance(count, bool) or count < 1:
        raise ValueError(f"{count!r} puzzles; give 1 or more")
    if split not in ("train", "test"):
        raise ValueError(f"split={split!r}; give 'train' or 'test'")
    if isinstance(numbers, bool) or not isinstance(numbers, int) or not 2 <= numbers <= MOST:
        raise ValueError(f"numbers={numbers!r}; give 2 to {MOST}")
    rng = random.Random(f"{seed}/{numbers}")
    found: dict[tuple[tuple[int, ...], int], Puzzle] = {}
    barren = 0  # tries since the last new puzzle
    while len(found) < count:
        barren += 1
        if barren > _PATIENCE:
            raise ValueError(
                f"{count} puzzles of {numbers} numbers: {len(found)} were found, and no other in {_PATIENCE} tries; "
                "ask for fewer, or for more numbers"
            )
        puzzle = _puzzle([rng.randint(1, 99) for _ in range(numbers)], rng)
        if puzzle is None:
            continue
        key = tuple(sorted(puzzle.numbers)), puzzle.target
        held_out = random.Random(repr(key)).random() < 0.1
        if held_out == (split == "test") and key not in found:
            found[key] = puzzle
            barren = 0
    return list(found.values())


def _puzzle(numbers: list[int], rng: random.Random) -> Puzzle | None:
    values = [(number, str(number)) for number in numbers]
    while len(values) > 1:
        rng.shuffle(values)
        (a, left), (b, right), *rest = values
        legal = [s for s in _OPERATORS if not (s == "/" and (b == 0 or a % b)) and not (s == "-" and a <= b)]
        sign = rng.choice(legal)
        values = [(_OPERATORS[sign](a, b), f"({left} {sign} {right})"), *rest]
    value, text = values[0]
    return Puzzle(tuple(numbers), value, text) if 1 <= value <= 999 else None


def read_row(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and target of a row, and the question about them."""
    name = next((name for name in ("nums", "numbers") if raw.get(name) is not None), None)
    if name is None or raw.get("target") is None:
        raise ValueError(f"no nums and target in this row; its columns are {', '.join(map(str, raw)) or 'none'}")
    given, target = raw[name], raw["target"]
    given = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(given, Sequence) or isinstance(given, str) or not 1 <= len(given) <= MOST:
        raise ValueError(f"{name} is {str(given)[:40]}; give a list of 1 to {MOST} numbers")
    for number in given:
        if not _is_whole(number) or not 0 <= number <= LARGEST:
            raise ValueError(f"{name} holds {number!r}; give whole numbers from 0 to {LARGEST}")
    if not _is_whole(target) or abs(target) > FARTHEST:
        raise ValueError(f"target is {target!r}; give a whole number of up to {FARTHEST}, positive or negative")
    prompt = f"Numbers: {', '.join(str(n) for n in given)}. Target: {target}."
    return {"prompt": prompt, "numbers": [int(n) for n in given], "target": int(target)}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def collate(rows: list[dict[str, Any]]) -> Given:
    """Numbers padded with zeros, their counts and the targets."""
    padded = np.zeros((len(rows), MOST), np.int32)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row["numbers"])] = row["numbers"]
    counts = np.asarray([len(row["numbers"]) for row in rows], np.int32)
    targets = np.asarray([row["target"] for row in rows], np.int32)
    return Given(padded, counts, targets)  # type: ignore[arg-type]


def make_env(codec: Codec, vocabulary: TokenBytes) -> Env:
    """One answer, judged."""
    return with_stop(with_reward(chat_env(codec.config), Partial(_reward, vocabulary)))


def _reward(vocabulary: TokenBytes, state: ChatState, action: Action) -> Float[Array, ""]:
    text = response_text(state, vocabulary)
    given: Given = state.info.task
    thought = find_last(text, "</think>")  # what is thought is no answer
    said = cut(text, jnp.where(thought < 0, 0, thought + len("</think>")))
    right = makes_target(
        between(said, "<answer>", "</answer>"), given.numbers, given.size, given.target, largest=LARGEST
    )
    return judged(text, jnp.where(right, jnp.float32(1), jnp.float32(0)))


TASK = Task(
    name="countdown",
    about="reach a target with each of a few numbers once",
    columns="nums and target",
    system_prompt=SYSTEM_PROMPT,
    limits={
        "capacity": 1024,
        "max_messages": 3,
        "max_message_len": 64,
        "max_prompt_len": 320,
        "max_response_len": 512,
        "max_turns": 1,
    },
    read=read_row,
    collate=collate,
    env=make_env,
)
