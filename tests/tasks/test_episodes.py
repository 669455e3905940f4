"""Whole episodes of every task in one program: deal, begin, answer, judge, begin anew."""

import json
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat.tasks import arithmetic, countdown, gsm8k
from statelesschat.testing import api_test
from tests.core.test_cost import HLO_WRITES, WRITES, in_compiled, over_the_buffer

BATCH, REPEATS, TURNS = 8, 2, 14
SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k_model_solutions_1200.jsonl"
SOLUTIONS = [
    {"question": "Two hats at $9 each?", "answer": "2*9=<<2*9=18>>18\n#### 18", "said": "9 + 9 = 18\n#### $18.00"},
    {"question": "Half of 7?", "answer": "#### 3.5", "said": r"It is \boxed{\frac{7}{2}}."},
    {"question": "Below 0?", "answer": "#### -3", "said": "A: 3"},
    {"question": "A lot?", "answer": "#### 70,000", "said": "That makes 70000."},
    {"question": "Which?", "answer": "#### 5", "said": "I do not know."},
]


def made(name: str) -> tuple[Any, Any, list[str], list[float]]:
    """Environment, table, an answer for each row, and the reward of an episode in which it is given again and again."""
    if name == "arithmetic":
        env, table = arithmetic.make(None, 10)
        problems = arithmetic.problems(10)
        return env, table, [str(p.answer) if i % 2 else "12345" for i, p in enumerate(problems)], [0.0, 1.0] * 5
    if name == "countdown":
        env, table = countdown.make(None, 6)
        puzzles = countdown.puzzles(6)
        texts = [f"<answer>{p.solution}</answer>" if i % 2 else "<answer>1</answer>" for i, p in enumerate(puzzles)]
        return env, table, texts, [0.0, 1.0] * 3
    env, table = gsm8k.make(None, SOLUTIONS)
    return env, table, [row["said"] for row in SOLUTIONS], [1.0, 1.0, 0.0, 1.0, 0.0]


SAMPLED = ["countdown", *(pytest.param(name, marks=pytest.mark.slow) for name in ("arithmetic", "gsm8k"))]


class Given:
    """A policy that gives each row its answer: the params are actions by row id."""

    def init(self, params: Any, states: Any) -> Any:
        return ()

    def act(self, params: Any, carry: Any, key: Any, states: Any) -> Any:
        return carry, jax.tree.map(lambda leaf: leaf[jnp.maximum(states.chat.info.row_id, 0)], params)


def episode(states: Any, env: Any, table: Any, actions: Any, cursor: Any, key: Any) -> Any:
    """Everything from dealing to beginning anew, scanned; the rewards of each row's episodes are added up."""
    draw = lambda cursor, where: sc.next_batch(cursor, table, BATCH, REPEATS, where=where)  # noqa: E731

    def add(total: Any, states: Any, ended: Any) -> Any:
        rewards, counts = total
        at, reward = states.chat.info.row_id, states.chat.turn_rewards.sum(1)
        return rewards.at[at].add(jnp.where(ended, reward, jnp.float32(0))), counts.at[at].add(ended.astype(jnp.int32))

    rows = table.tokens.shape[0]
    return sc.collect(
        env, Given(), actions, states, key, TURNS,
        source=cursor, draw=draw, total=(jnp.zeros(rows), jnp.zeros(rows, jnp.int32)), hand_over=add,
    )  # fmt: skip


def arguments(env: Any, table: Any, texts: list[str]) -> Any:
    cursor, first, _ = sc.next_batch(sc.make_cursor(1, num_epochs=2), table, BATCH, REPEATS)
    states = sc.begin(env, first, jax.random.key(0))
    codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
    actions = jax.tree.map(jnp.asarray, codec.encode_actions(texts))
    return states, env, table, actions, cursor, jax.random.key(1)


@pytest.mark.parametrize("name", SAMPLED)
def test_the_whole_episode_is_one_program_that_asks_nothing_of_the_host(name: str) -> None:
    env, table, texts, expected = made(name)
    given = arguments(env, table, texts)
    rows, config = table.tokens.shape[0], given[0].chat.config
    found = over_the_buffer(episode, config, given)
    assert not set(found) - WRITES, found
    run = jax.jit(episode, donate_argnums=0).lower(*given).compile()
    compiled = in_compiled(run, config, BATCH)
    assert not set(compiled) - HLO_WRITES, compiled
    with jax.transfer_guard("disallow"):
        states, cursor, (rewards, counts), _ = run(*given)
    assert counts.tolist() == [2 * REPEATS] * rows and bool(cursor.exhausted)
    assert rewards.tolist() == [2 * REPEATS * reward for reward in expected]
    assert (states.status == 0).all()


@pytest.mark.parametrize("name", SAMPLED)
def test_the_laws_hold(name: str) -> None:
    env, table, _, _ = made(name)
    api_test(env, sc.take_rows(table, [0, 1, 2, 3]), num_steps=2)


def test_a_wrong_answer_gets_another_try_and_a_right_one_ends_the_episode() -> None:
    env, table = arithmetic.make(None, 2)
    right = [str(p.answer) for p in arithmetic.problems(2)]
    states = sc.begin(env, table, jax.random.key(0))
    codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
    states = jax.vmap(env.step)(states, codec.encode_actions([right[0], "no idea"]))
    assert states.terminated.tolist() == [True, False] and states.reward.tolist() == [1, 0]
    states = jax.vmap(env.step)(states, codec.encode_actions(["0", right[1]]))
    assert states.terminated.all() and states.reward.tolist() == [0, 1]
    assert [m["content"] for m in codec.decode_history(states.chat)[1]][-3:] == [
        "no idea", arithmetic.RETRY, right[1]
    ]  # fmt: skip


def test_problems_of_the_two_splits_are_apart_and_all_there() -> None:
    train, test = arithmetic.problems(None), arithmetic.problems(None, "test")
    assert len(set(train) | set(test)) == len(train) + len(test) == 2 * 100 * 100
    assert {(p.second, p.first) for p in test if p.operator == "+"} == {
        (p.first, p.second) for p in test if p.operator == "+"
    }
    assert min(p.answer for p in test) < 0
    assert arithmetic.problems(50, seed=1) != arithmetic.problems(50, seed=2)
    large = arithmetic.problems(200, max_operand=10**6)
    assert len(set(large)) == 200 and max(p.first for p in large) > 10**5


def test_puzzles_are_solved_by_their_solutions_and_the_splits_are_apart() -> None:
    for numbers in (2, 3, 6):
        train, test = countdown.puzzles(60, "train", numbers), countdown.puzzles(20, "test", numbers)
        known = {(tuple(sorted(p.numbers)), p.target) for p in train}
        assert not known & {(tuple(sorted(p.numbers)), p.target) for p in test}
        env, table = countdown.make(None, [{"nums": list(p.numbers), "target": p.target} for p in train + test])
        states = sc.begin(env, table, jax.random.key(0))
        codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
        said = codec.encode_actions([f"So <answer>{p.solution}</answer>" for p in train + test])
        assert (jax.vmap(env.step)(states, said).reward == 1).all()


def test_an_answer_wider_than_the_verifiers_window_is_a_status() -> None:
    env, table = gsm8k.make(None, SOLUTIONS[:2], max_response_len=32)
    states = sc.begin(env, table, jax.random.key(0))
    codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
    begun = codec.encode_actions(["Let me think. " * 2, "#### 3.5"], finished=[False, True], width=32)
    states = jax.vmap(env.step)(states, begun)
    states = jax.vmap(env.step)(states, codec.encode_actions(["#### 18", "x"], begin=False, width=32))
    assert states.status.tolist() == [int(sc.Status.FORMAT_ERROR), 0]
    assert states.chat.turn_rewards[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gsm8k.make(None, [*SOLUTIONS, {"question": "a", "answer": "five"}]), "row 5: the gold answer 'five'"),
        (lambda: gsm8k.make(None, [*SOLUTIONS, {"problem": "a", "answer": "5"}]), "row 5: no question .* problem, "),
        (lambda: gsm8k.make(None, [*SOLUTIONS, {"question": "a", "answer": [5]}]), "row 5: answer is '\\[5\\]'"),
        (lambda: gsm8k.make(None, [*SOLUTIONS, "a"]), "row 5: a row is a dict"),
        (lambda: gsm8k.make(None, []), "empty"),
        (lambda: gsm8k.make(None, SOLUTIONS, max_prompt_len=40), "max_prompt_len=40"),
        (lambda: gsm8k.make(None, [*SOLUTIONS, {"question": "a" * 2000, "gold": "1"}]), "row 5"),
        (lambda: gsm8k.make(None, 5), "source"),
        (lambda: gsm8k.make(None, "no/such.jsonl"), "cannot be read"),
        (lambda: arithmetic.make(None, 0), "0 problems"),
        (lambda: arithmetic.make(None, 10**6), "has 18096"),
        (lambda: arithmetic.make(None, split="valid"), "train"),
        (lambda: arithmetic.make(None, max_operand=0), "max_operand"),
        (lambda: countdown.make(None, [{"nums": [1, 2]}]), "row 0: no nums and target"),
        (lambda: countdown.make(None, [{"nums": [1, -2], "target": 3}]), "row 0: nums holds -2"),
        (lambda: countdown.make(None, [{"nums": [1.5], "target": 3}]), "row 0: nums holds 1.5"),
        (lambda: countdown.make(None, [{"nums": list(range(7)), "target": 3}]), "row 0: nums is"),
        (lambda: countdown.make(None, [{"nums": [1], "target": 2**24}]), "row 0: target"),
        (lambda: countdown.make(None, 5, numbers=9), "numbers=9"),
        (lambda: countdown.make(None, -1), "-1 puzzles"),
        (lambda: sc.tasks.make("gsm", None, []), "arithmetic, countdown, gsm8k"),
    ],
)  # fmt: skip
def test_bad_input_is_named_at_construction(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_config_alone_or_options_beside_a_codec_are_refused() -> None:
    tokenizer = sc.load_tokenizer(None)
    config = sc.make_config(
        tokenizer, capacity=512, max_messages=4, max_message_len=64, max_prompt_len=256, max_turns=1
    )
    with pytest.raises(TypeError, match="Codec"):
        gsm8k.make(config, SOLUTIONS)
    with pytest.raises(ValueError, match="capacity"):
        gsm8k.make(sc.Codec(tokenizer, config), SOLUTIONS, capacity=9)
    env, table = sc.tasks.make("gsm8k", sc.Codec(tokenizer, config), SOLUTIONS)
    assert sc.begin(env, table, jax.random.key(0)).chat.config == config


def test_sources_of_every_kind_give_the_same_table(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in SOLUTIONS))
    _, one = gsm8k.make(None, SOLUTIONS)
    for source in (str(path), path, datasets.Dataset.from_list(SOLUTIONS), iter(SOLUTIONS)):
        chex.assert_trees_all_equal(gsm8k.make(None, source)[1], one)
    limited = gsm8k.make(None, path, rows={"limit": 2})[1]
    assert limited.tokens.shape[0] == 2


def test_every_labelled_answer_is_judged_as_its_label_says() -> None:
    if not SHARED.exists():
        pytest.skip(f"needs {SHARED.name}, which is not beside this checkout")
    rows = [json.loads(line) for line in SHARED.read_text().splitlines()][::10]
    env, table = gsm8k.make(None, rows, max_response_len=2048, capacity=4096)
    states = sc.begin(env, table, jax.random.key(0))
    codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
    states = jax.jit(lambda e, s, a: jax.vmap(e.step)(s, a))(
        env, states, codec.encode_actions([row["solution"] for row in rows])
    )
    assert (np.asarray(states.reward) == 1).tolist() == [row["is_correct"] for row in rows]


def test_rows_with_other_names_and_options_that_are_not_the_callers() -> None:
    rows = [{"frage": row["question"], "loesung": row["answer"]} for row in SOLUTIONS]
    _, table = gsm8k.make(None, rows, rows={"columns": {"question": "frage", "answer": "loesung"}})
    chex.assert_trees_all_equal(table, gsm8k.make(None, SOLUTIONS)[1])
    with pytest.raises(ValueError, match="row 0: no column solution; there are frage, loesung"):
        gsm8k.make(None, rows, rows={"columns": {"answer": "solution"}})
    with pytest.raises(ValueError, match="rows has map, .* columns, split"):
        gsm8k.make(None, rows, rows={"map": dict})


def test_puzzles_that_cannot_be_found_are_given_up() -> None:
    with pytest.raises(ValueError, match="ask for fewer"):
        countdown.puzzles(10**6, numbers=2)


def test_an_expression_that_was_only_thought_is_no_answer() -> None:
    env, table = countdown.make(None, [{"nums": [2, 3], "target": 6}] * 2)
    states = sc.begin(env, table, 0)
    codec = sc.Codec(sc.load_tokenizer(None), states.chat.config)
    said = ["<think><answer>2*3</answer></think> I give up.", "<think>?</think><answer>2*3</answer>"]
    assert jax.vmap(env.step)(states, codec.encode_actions(said)).reward.tolist() == [0, 1]
    assert codec.decode_history(states)[0][-1]["content"] == "Numbers: 2, 3. Target: 6."
