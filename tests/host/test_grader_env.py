"""Rewards of a grader on the host: every row has a reward or a status, whatever the grader does."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat.data import RowInfo
from statelesschat.envs import with_stop
from statelesschat.host import GraderPool, HostError, check, faults, references_of, with_grader
from statelesschat.host.reference import reference_at
from tests.host import toys

LIMITS = {"capacity": 512, "max_messages": 8, "max_message_len": 32, "max_response_len": 96, "max_turns": 2}
TOKENIZER = sc.load_tokenizer(None)
CONFIG = sc.make_config(TOKENIZER, **LIMITS)
CODEC = sc.Codec(TOKENIZER, CONFIG)
OK, HOST_ERROR, FORMAT_ERROR, PENDING = (
    int(sc.Status[name]) for name in ("OK", "HOST_ERROR", "FORMAT_ERROR", "PENDING")
)


@jax.jit
def step(env: Any, states: Any, actions: Any) -> Any:
    return jax.vmap(env.step)(states, actions)


def eagerly(env: Any, states: Any, actions: Any) -> Any:
    return jax.vmap(env.step)(states, actions)


def begun(env: Any, *references: str) -> Any:
    ids = jnp.arange(len(references), dtype=jnp.int32)
    info = RowInfo(ids, ids, jnp.zeros_like(ids), jax.tree.map(jnp.asarray, references_of(references)))
    return sc.begin(env, CODEC.encode(["?"] * len(references), info=info), jax.random.key(0))


def says(*answers: str) -> Any:
    return jax.tree.map(jnp.asarray, CODEC.encode_actions(answers, width=96))


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(toys.act, workers=2, timeout_s=1.0) as made:
        yield made


@pytest.mark.parametrize("way", [step, eagerly])
def test_each_answer_is_compared_with_its_own_reference(way: Any, pool: GraderPool) -> None:
    long, odd = "x" * 70, "π ≠ 3\n\0 #"
    env, returned = with_grader(sc.chat_env(CONFIG), CODEC, pool)
    assert returned is pool
    states = way(env, begun(env, "4", long, odd, "4"), says("4", long, odd, "5"))
    assert states.reward.tolist() == [1, 1, 1, 0] and states.status.tolist() == [OK] * 4
    assert faults(states) == {}
    check(states)


def test_a_grader_that_hangs_or_crashes_costs_its_own_row(pool: GraderPool) -> None:
    env = with_stop(with_grader(sc.chat_env(CONFIG), CODEC, pool, response_len=80)[0])
    answers = ["4", "hang", "crash", "raise", "nan", "4", "x" * 90]
    states = step(env, begun(env, *["4"] * 7), says(*answers))
    assert states.reward.tolist() == [1, 0, 0, 0, 0, 1, 0]
    assert states.status.tolist() == [OK, *[HOST_ERROR] * 4, OK, FORMAT_ERROR]
    assert (states.done).all()
    said = faults(states)
    assert list(said) == [1, 2, 3, 4]
    assert said[1] == "TIMEOUT: the grader took longer than 1 s"
    for row, part in ((2, "DEAD: "), (3, "RuntimeError: no idea"), (4, "nan")):
        assert part in said[row]
    with pytest.raises(HostError, match="row 1: TIMEOUT.* and 3 more"):
        check(states)


def test_what_is_not_graded_in_time_is_pending_and_collected_later(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    answer = f"wait {gate}"
    limits = LIMITS | {"max_response_len": 200}
    codec = sc.Codec(TOKENIZER, sc.make_config(TOKENIZER, **limits))
    with GraderPool(toys.act, workers=2, timeout_s=60.0) as pool:
        env, _ = with_grader(sc.chat_env(codec.config), codec, pool, deadline_s=0.2)
        states = begun(env, answer, "4")
        states = step(env, states, codec.encode_actions([answer, "4"], width=200))
        for _ in range(50):  # until the worker of the second is up
            if states.status.tolist() == [PENDING, OK]:
                break
            states = step(env, states, codec.encode_actions(["ignored", "5"], width=200))
        assert states.status.tolist() == [PENDING, OK] and states.reward[0] == 0
        gate.touch()
        for _ in range(50):
            states = step(env, states, codec.encode_actions(["ignored"] * 2, width=200))
            if not states.chat.pending[0]:
                break
        assert states.status[0] == OK and float(states.chat.turn_rewards[0, 0]) == 1.0


def test_later_turns_are_graded_too(pool: GraderPool) -> None:
    env, _ = with_grader(sc.chat_env(CONFIG), CODEC, pool)
    block = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), CODEC.encode_messages("user", ["No."]))
    answered = sc.with_reply(env, jax.tree_util.Partial(_more, block))
    states = begun(answered, "4", "4")
    for answers in (("5", "4"), ("4", "5")):
        states = step(answered, states, says(*answers))
    assert states.chat.turn_rewards.tolist() == [[0, 1], [1, 0]]


def _more(block: Any, state: Any, action: Any) -> Any:
    return block, state.turn < 2


def test_a_pool_that_cannot_work_ends_rows_and_says_why() -> None:
    made = GraderPool(toys.act, workers=1)
    env, _ = with_grader(sc.chat_env(CONFIG), CODEC, made)
    made.close()
    states = step(env, begun(env, "4"), says("4"))
    assert states.status.tolist() == [HOST_ERROR] and "closed" in faults(states)[0]
    with pytest.raises(HostError, match="closed") as caught:
        check(states)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_conversations_without_a_reference_are_refused_when_it_is_traced(pool: GraderPool) -> None:
    env, _ = with_grader(sc.chat_env(CONFIG), CODEC, pool)
    states = sc.begin(env, CODEC.encode(["?"]), jax.random.key(0))
    with pytest.raises(TypeError, match="make the data with task=references_of"):
        step(env, states, says("4"))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), True, "soon"])
def test_a_deadline_that_makes_no_sense_is_refused(wrong: Any, pool: GraderPool) -> None:
    with pytest.raises((ValueError, TypeError), match="deadline_s"):
        with_grader(sc.chat_env(CONFIG), CODEC, pool, deadline_s=wrong)


def test_what_a_function_is_wrapped_with_is_closed_where_the_rest_fails() -> None:
    with pytest.raises(TypeError, match="no environment"):
        with_grader("env", CODEC, toys.act)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout_s"):
        with_grader(sc.chat_env(CONFIG), CODEC, toys.act, timeout_s=0)


@pytest.mark.parametrize("texts", [[], [""], ["a"], ["é" * 31, "x" * 65], ["𝄞" * 16]])
def test_references_are_texts_again(texts: list[str]) -> None:
    references = references_of(texts)
    assert references.words.dtype == references.length.dtype == np.int32
    assert references.words.shape[0] == len(texts) and references.words.shape[1] % 16 == 0
    read = [reference_at(np.asarray(w), int(n)) for w, n in zip(references.words, references.length, strict=True)]
    assert read == texts


def test_references_that_are_no_text_are_refused() -> None:
    with pytest.raises(TypeError, match="'4', a int; give text"):
        references_of(["4", 4])  # type: ignore[list-item]
    with pytest.raises(ValueError):
        references_of(["\ud800"])


def test_many_answers_are_graded_at_the_same_time() -> None:
    with GraderPool(toys.length, workers=2) as pool:
        env, _ = with_grader(sc.chat_env(CONFIG), CODEC, pool)
        began = time.monotonic()
        states = step(env, begun(env, *["ab"] * 200), says(*["x" * (i % 50) for i in range(200)]))
        assert states.reward.tolist() == [2000 + i % 50 for i in range(200)]
        assert time.monotonic() - began < 60
