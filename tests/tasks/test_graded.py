"""Tasks whose rewards are graders': as the libraries judge, and every fault named before anything runs."""

import importlib.util
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statelesschat as sc
from statelesschat.data import make_cursor, next_batch
from statelesschat.host import GraderPool, faults, ifeval_reward, math_reward
from statelesschat.tasks import ifeval, math
from statelesschat.tasks.graded import pool_of
from tests.host import toys

needs_math = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")
needs_ifeval = pytest.mark.skipif(importlib.util.find_spec("if_verifiable") is None, reason="needs if-verifiable")
LIMITS = {"capacity": 512, "max_prompt_len": 256, "max_response_len": 200}
NO_COMMA = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{"num_words": None}]}
BOTH = {
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{}, {"num_words": 3, "relation": "at least"}],
}


@jax.jit
def play(env: Any, table: Any, actions: Any) -> Any:
    return jax.vmap(env.step)(sc.begin(env, table, jax.random.key(0)), actions)


def answers(*texts: str) -> Any:
    tokenizer = sc.load_tokenizer(None)
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, max_messages=3, max_message_len=64, max_turns=1, **LIMITS))
    return jax.tree.map(jnp.asarray, codec.encode_actions(texts))


@needs_math
def test_mathematics_is_judged_as_mathematics() -> None:
    rows = [{"problem": "Half?", "answer": r"$\frac{1}{2}$"}, {"question": "Root?", "gold": r"It is \boxed{2\sqrt2}."}]
    env, table = math.make(None, rows * 2, **LIMITS)
    states = play(env, table, answers(r"\boxed{0.5}", r"<think>8</think> so $\sqrt{8}$", "1/3", "It is 8."))
    assert states.reward.tolist() == [1, 1, 0, 0] and (states.done & states.terminated).all()
    assert faults(states) == {}


@needs_ifeval
def test_instructions_are_judged_together_or_by_the_fraction() -> None:
    rows = [{"prompt": "Write.", **NO_COMMA}, {"prompt": "Write.", **BOTH}, {"prompt": "Write.", **BOTH}]
    said = "ok, then", "ok then", "now ok then"
    env, table = ifeval.make(None, rows, **LIMITS)
    assert play(env, table, answers(*said)).reward.tolist() == [0, 0, 1]
    with GraderPool(partial(ifeval_reward, level="instruction"), workers=1) as pool:
        env, table = sc.tasks.make("ifeval", None, rows, pool=pool, **LIMITS)
        assert play(env, table, answers(*said)).reward.tolist() == [0, 0.5, 1]


@needs_math
def test_a_grader_that_hangs_costs_its_row_and_the_batch_goes_on() -> None:
    with GraderPool(toys.act, workers=2, timeout_s=1.0) as pool:
        env, table = math.make(None, [{"problem": "?", "answer": "4"}] * 4, pool=pool, **LIMITS)
        states = play(env, table, answers("4", "hang", "crash", "5"))
    assert states.reward.tolist() == [1, 0, 0, 0]
    assert states.status.tolist() == [0, int(sc.Status.HOST_ERROR), int(sc.Status.HOST_ERROR), 0]
    assert sorted(faults(states)) == [1, 2]


@needs_math
def test_references_of_many_rows_are_drawn_with_their_prompts() -> None:
    rows = [{"problem": f"What is {i}?", "answer": str(i)} for i in range(1100)]  # more than are read at a time
    with GraderPool(toys.act, workers=2) as pool:
        env, table = math.make(None, rows, pool=pool, **LIMITS)
        _, batch, _ = next_batch(make_cursor(3), table, 4, 2)
        texts = [str(i) for i in batch.info.row_id.tolist()]
        texts[1] += "0"
        states = play(env, batch, answers(*texts))
    assert states.reward.tolist() == [1, 0, *[1] * (len(texts) - 2)]


@needs_math
@needs_ifeval
@pytest.mark.parametrize(
    ("make", "row", "message"),
    [
        (math.make, {"problem": "a", "answer": "who knows the answer"}, "row 1: .*no mathematics"),
        (math.make, {"problem": "a", "answer": "1" * 600}, "row 1: the gold answer has 600 bytes"),
        (math.make, {"problem": "a"}, "row 1: no gold or answer"),
        (math.make, {"answer": "4"}, "row 1: no problem or question"),
        (ifeval.make, {"prompt": "a", "kwargs": []}, "row 1: .*lists no instructions"),
        (ifeval.make, {**NO_COMMA}, "row 1: no prompt"),
        (ifeval.make, {"prompt": "a", **NO_COMMA, "instruction_id_list": ["punctuation:no_coma"]},
         "row 1: there is no instruction 'punctuation:no_coma'; near ones: punctuation:no_comma"),
        (ifeval.make, {"prompt": "a", **BOTH, "kwargs": [{}, {}]}, "row 1: .*needs num_words, relation"),
        (ifeval.make, {"prompt": "a", **BOTH, "kwargs": [{}]}, "row 1: 2 instructions with 1 kwargs"),
        (ifeval.make, {"prompt": "a", **BOTH, "kwargs": "{}"}, "row 1: kwargs is '{}'"),
    ],
)  # fmt: skip
def test_bad_rows_are_named_at_construction(make: Any, row: Any, message: str) -> None:
    good = {"problem": "a", "answer": "4"} if make is math.make else {"prompt": "a", **NO_COMMA}
    with pytest.raises(ValueError, match=message):
        make(None, [good, row], **LIMITS)


@pytest.mark.parametrize(
    ("make", "module"), [(math.make, "math_verify"), (ifeval.make, "if_verifiable")], ids=["math", "ifeval"]
)
def test_without_the_library_it_says_what_to_install(make: Any, module: str, monkeypatch: Any) -> None:
    from statelesschat.host import graders

    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    caches = [graders._math_verify, graders._instructions, graders._parsed]
    for cache in caches:
        cache.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"pip install 'statelesschat\[graders\]'"):
            make(None, [])
    finally:
        for cache in caches:
            cache.cache_clear()


@needs_math
def test_environments_of_a_task_share_their_workers() -> None:
    first, second = (math.make(None, [{"problem": "a", "answer": "4"}], **LIMITS) for _ in range(2))
    for env, table in (first, second):
        assert play(env, table, answers("4")).reward.tolist() == [1]
    assert pool_of(math_reward) is pool_of(math_reward) and 1 <= len(pool_of(math_reward)._living) <= 8
