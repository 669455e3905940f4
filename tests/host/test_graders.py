import builtins
import functools
import importlib.util
import json
import random
import subprocess
import sys
import threading

import pytest

from statelesschat.host import graders
from statelesschat.host.graders import check_instructions, check_math_gold, ifeval_reward, math_reward
from statelesschat.host.grading import GraderError, GraderPool
from statelesschat.host.session import Outcome

needs_math = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")
needs_ifeval = pytest.mark.skipif(importlib.util.find_spec("if_verifiable") is None, reason="needs if-verifiable")


@needs_math
@pytest.mark.parametrize(
    ("response", "gold", "reward"),
    [
        (r"\boxed{\frac{1}{2}}", "1/2", 1.0),
        (r"\boxed{1/3}", "1/2", 0.0),
        (r"It is 1/2.", "0.5", 1.0),
        (r"0.5", r"\frac{1}{2}", 1.0),
        (r"\boxed{\dfrac12}", r"$\frac{1}{2}$", 1.0),
        ("$70,000.", "70000", 1.0),
        (r"\boxed{$70,000.}", "70000", 1.0),
        (r"\boxed{\$70,000}", "$70,000", 1.0),
        ("That makes 70000 dollars.", "70,000 dollars", 1.0),
        ("-3", "-3", 1.0),
        ("−3", "-3", 1.0),
        ("3", "-3", 0.0),
        ("-3", "3", 0.0),
        (r"\boxed{3.5e4}", "35000", 1.0),
        (r"\boxed{35000}", "3.5e4", 1.0),
        (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1.0),
        (r"\boxed{1+x}", "x+1", 1.0),
        (r"\boxed{x=5}", "5", 1.0),
        (r"\boxed{\{2,1\}}", r"\{1,2\}", 1.0),
        (r"\boxed{\text{Monday}}", r"\text{Monday}", 1.0),
        (r"\boxed{\text{Monday}}", r"\text{Tuesday}", 0.0),
    ],
)
def test_mathematics_that_is_equal_earns_one(response, gold, reward):
    assert math_reward(response, gold) == reward


@needs_math
@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (r"\fbox{42}", 1.0),
        (r"\boxed {42}", 1.0),
        (r"\boxed{\boxed{42}}", 1.0),
        (r"so $x = \boxed{42}$, where $y = 7$.", 1.0),
        ("<answer>42</answer>", 1.0),
        ("<answer>41</answer> or rather <answer>\n42\n</answer> (not 40)", 1.0),
        ("42 <answer>41</answer>", 0.0),
        (r"<answer>so \boxed{42}</answer>", 1.0),
        (r"<answer>it is $\frac{84}{2}$</answer>", 1.0),
        ("The answer is **42**.", 1.0),
        ("<think>41</think>42", 1.0),
        (r"\boxed{42}</think>\boxed{41}", 0.0),
        (r"\boxed{42}</think>I do not know.", 0.0),
        (r"<think>it must be \boxed{42}", 0.0),
        ("<think>a</think><think>42", 0.0),
        (r"\boxed{42", 0.0),
        (r"\boxed{\frac{84}{2}", 0.0),
        (r"\boxed{42} or \boxed{4", 0.0),
        (r"\boxed{42} \{", 1.0),
        (r"\boxed{}", 0.0),
        ("", 0.0),
        ("}{" * 50, 0.0),
        ("I cannot say.", 0.0),
        ("\ud800\0 42", 1.0),
    ],
)
def test_where_the_answer_is_looked_for(response, reward):
    assert math_reward(response, "42") == reward


@needs_math
def test_mathematics_is_judged_in_any_thread():
    rewards = []
    thread = threading.Thread(target=lambda: rewards.append(math_reward("42", "42")))
    thread.start()
    thread.join()
    assert rewards == [1.0]


@needs_math
@pytest.mark.parametrize("gold", ["", "  ", "$", "???", r"\frac{1", "hello world", "the answer is unknown"])
def test_gold_answers_that_are_no_mathematics_are_refused(gold):
    with pytest.raises(ValueError, match="no mathematics that math-verify can read"):
        check_math_gold(gold)
    with pytest.raises(ValueError, match="no mathematics that math-verify can read"):
        math_reward("42", gold)


@needs_math
def test_gold_answers_that_are_mathematics_pass():
    for gold in [
        "42",
        "-3",
        "1/2",
        "70,000",
        "$18",
        "x+1",
        r"\sqrt{2}",
        "(1,2)",
        "50%",
        r"\text{Monday}",
        "18 dollars",
    ]:
        check_math_gold(gold)
    for wrong in (42, ["42"]):
        with pytest.raises(TypeError, match="give text"):
            check_math_gold(wrong)


@needs_math
def test_mathematics_in_a_pool():
    with GraderPool(math_reward, workers=2, timeout_s=60.0) as pool:
        grades = pool.grade([r"\boxed{\frac{1}{2}}", "1/3", "1"], ["1/2", "1/2", "hello world"])
    assert [grade.reward for grade in grades] == [1.0, 0.0, 0.0]
    assert [grade.outcome for grade in grades] == [Outcome.OK, Outcome.OK, Outcome.FAULT]
    assert "hello world" in grades[2].detail


@needs_math
def test_a_power_that_never_ends_is_killed():
    with GraderPool(math_reward, workers=1, timeout_s=3.0) as pool:
        grades = pool.grade([r"\boxed{9^{9^{9^{9}}}}", "1"], ["1", "1"])
    assert [grade.outcome for grade in grades] == [Outcome.TIMEOUT, Outcome.OK]


def reference(name, **kwargs):
    return {"instruction_id_list": [name], "kwargs": [kwargs]}


WORDS = functools.partial(reference, "length_constraints:number_words")
SENTENCES = functools.partial(reference, "length_constraints:number_sentences")
CAPITALS = functools.partial(reference, "change_case:capital_word_frequency")
NINE = "one two three four five six seven eight nine"
TWO = {
    "prompt": "Write.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{"relation": None}, {"num_words": 5, "relation": "less than"}],
}


@needs_ifeval
@pytest.mark.parametrize(
    ("response", "asked", "reward"),
    [
        (NINE, WORDS(num_words=5, relation="less than"), 0.0),
        (NINE, WORDS(num_words=10, relation="less than"), 1.0),
        (NINE, WORDS(num_words=9, relation="at least"), 1.0),
        (NINE, WORDS(num_words=10, relation="at least"), 0.0),
        ("No commas.", reference("punctuation:no_comma"), 1.0),
        ("One, two.", reference("punctuation:no_comma"), 0.0),
        ('{"a": 1}', reference("detectable_format:json_format"), 1.0),
        ("a: 1", reference("detectable_format:json_format"), 0.0),
        ("Mr. Fox ran. Why?! So it is.", SENTENCES(num_sentences=4, relation="less than"), 1.0),
        ("Mr. Fox ran. Why?! So it is.", SENTENCES(num_sentences=3, relation="at least"), 1.0),
        ("A ran. B ran", SENTENCES(num_sentences=3, relation="at least"), 0.0),
        ("OH NO. It WAS so.", CAPITALS(capital_frequency=3, capital_relation="at least"), 1.0),
        ("OH NO. It WAS so.", CAPITALS(capital_frequency=3, capital_relation="less than"), 0.0),
        ("Das ist ein ganz kurzer deutscher Satz.", reference("language:response_language", language="de"), 1.0),
        ("This sentence is in plain English.", reference("language:response_language", language="de"), 0.0),
        ("Well, <think>a, b</think>none", reference("punctuation:no_comma"), 1.0),
        ("<think>none", reference("punctuation:no_comma"), 0.0),
        ("", reference("punctuation:no_comma"), 0.0),
        (" \n", WORDS(num_words=5, relation="less than"), 0.0),
    ],
)
def test_instructions_that_are_followed_earn_one(response, asked, reward):
    assert ifeval_reward(response, asked) == reward
    assert ifeval_reward(response, json.dumps(asked)) == reward


@needs_ifeval
def test_the_level_is_of_the_prompt_or_of_each_instruction():
    assert [ifeval_reward(text, TWO) for text in ("a b", "a, b", NINE)] == [1.0, 0.0, 0.0]
    assert [ifeval_reward(text, TWO, level="instruction") for text in ("a b", "a, b", NINE + ",")] == [1.0, 0.5, 0.0]
    with pytest.raises(ValueError, match="give 'prompt' or 'instruction'"):
        ifeval_reward("a", TWO, level="word")


@needs_ifeval
def test_loose_judges_also_without_the_first_line_and_the_last():
    response = "Sure, here it is:\nno commas"
    assert ifeval_reward(response, reference("punctuation:no_comma")) == 0.0
    assert ifeval_reward(response, reference("punctuation:no_comma"), strict=False) == 1.0


@needs_ifeval
def test_rewards_draw_nothing_at_random():
    before = random.getstate()
    ifeval_reward("a b", TWO)
    assert random.getstate() == before


@needs_ifeval
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (reference("punctuation:no_commas"), "no instruction 'punctuation:no_commas'; near ones: punctuation:no_comma"),
        (WORDS(num_words=5), "needs relation"),
        (WORDS(num_words=5, relation=None), "needs relation"),
        (WORDS(num_words=5, relation="at most"), "at most is given"),
        (reference("punctuation:no_comma", n=1), "unexpected keyword argument 'n'"),
        ({"instruction_id_list": [], "kwargs": []}, "at least one"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}, {}]}, "1 instructions with 2 kwargs"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": ["{}"]}, "kwargs is"),
        ({"instruction_id_list": [["a"]], "kwargs": [{}]}, "no instruction"),
        ({"instructions": []}, "lists no instructions"),
        ("[]", "lists no instructions"),
        ("{", "no JSON"),
    ],
)
def test_wrong_references_are_refused(wrong, said):
    for check in (check_instructions, functools.partial(ifeval_reward, "text")):
        with pytest.raises(ValueError) as refused:
            check(wrong)
        assert said in str(refused.value)


@needs_ifeval
def test_kwargs_may_be_left_out_where_none_are_needed():
    check_instructions({"instruction_id_list": ["punctuation:no_comma"]})
    check_instructions({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [None]})


@needs_ifeval
def test_every_instruction_runs_without_a_download():
    values = {
        "keywords": ["a"],
        "keyword": "a",
        "forbidden_words": ["z"],
        "letter": "a",
        "language": "en",
        "first_word": "a",
        "postscript_marker": "P.S.",
        "section_spliter": "Section",
        "prompt_to_repeat": "a",
        "end_phrase": "a",
    }
    known = graders._instructions()
    assert len(known) == 25
    for name, kind in known.items():
        kwargs = {}
        for key in kind(name).get_instruction_args_keys():
            kwargs[key] = "at least" if key.endswith("relation") else values.get(key, 1)
        for strict in (True, False):
            assert ifeval_reward("A word, and another. P.S. Bye", reference(name, **kwargs), strict=strict) in (
                0.0,
                1.0,
            )


@needs_ifeval
def test_instructions_in_a_pool():
    with GraderPool(functools.partial(ifeval_reward, level="instruction"), workers=1, timeout_s=60.0) as pool:
        grades = pool.grade(["a, b", "a"], [TWO, reference("no:such")])
    assert (grades[0].reward, grades[0].outcome) == (0.5, Outcome.OK)
    assert grades[1].outcome is Outcome.FAULT and "no:such" in grades[1].detail


@pytest.mark.parametrize("call", [lambda: math_reward("1", "1"), lambda: ifeval_reward("a", TWO)])
def test_a_library_that_is_missing_is_named(monkeypatch, call):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.partition(".")[0] in ("math_verify", "if_verifiable"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    for cached in (graders._math_verify, graders._instructions, graders._parsed):
        cached.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"pip install 'statelesschat\[graders\]'"):
        call()


def test_a_library_that_is_missing_is_told_before_the_first_row(tmp_path, monkeypatch):
    (tmp_path / "math_verify.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with GraderPool(math_reward, workers=1) as pool:
        with pytest.raises(GraderError, match=r"pip install 'statelesschat\[graders\]'"):
            pool.grade(["1"], ["1"])


def test_the_module_stands_alone():
    code = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('alone', {graders.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print({name.partition('.')[0] for name in sys.modules} & {'jax', 'statelesschat', 'sympy', 'datasets'})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
