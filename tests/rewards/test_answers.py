"""Final answers and their numbers: against the reference, at the borders of the windows, and against cheats."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given

from tests.rewards import reference, texts
from tests.rewards.batches import ROWS, SIZE, answers, bytes_of, no_golds, stacked, value_of, verdicts


def check_texts(batch: list[bytes]) -> list[reference.Value | None]:
    """Raise unless all is as the reference has it; the numbers."""
    values = []
    for rows in (batch[i : i + ROWS] for i in range(0, len(batch), ROWS)):
        found = answers(verdicts, stacked(rows, SIZE), no_golds(), rows=len(rows))
        for text, (answer, number, _) in zip(rows, found, strict=True):
            values.append(value_of(number))
            if len(text) > SIZE:
                assert not number.valid and bytes_of(answer.text) is None, text
                continue
            wanted = reference.final_answer(text)
            assert (bool(answer.marked), bool(answer.enclosed)) == (wanted.marked, wanted.enclosed), text
            assert bool(answer.text.fits) == wanted.whole, text
            if wanted.whole:
                assert bytes_of(answer.text) == wanted.text, text
            assert values[-1] == reference.final_number(text), text
    return values


def responses(source: random.Random) -> list[bytes]:
    makers = [texts.answer, texts.answer, lambda source: texts.jumble(source, 16)]
    return [source.choice(makers)(source) for _ in range(ROWS)]


@given(texts.seeds())
def test_answers_and_their_numbers_are_those_of_the_reference(source: random.Random) -> None:
    check_texts(responses(source))


@pytest.mark.slow
def test_200_000_answers_and_their_numbers_are_those_of_the_reference() -> None:
    for seed in range(200_000 // ROWS):
        check_texts(responses(random.Random(seed)))


ENCLOSINGS = [("\\boxed{", "}"), ("<answer>", "</answer>"), ("#### ", ""), ("\nA:", "\n"), ("", "")]


@given(texts.seeds())
def test_at_the_borders_of_the_windows(source: random.Random) -> None:
    """Answers and lines of around 256 bytes, numbers of around 64, digits far from the end of the text."""
    batch = []
    for _ in range(ROWS):
        number = texts.number(source).strip() if source.random() < 0.5 else "7" * source.randint(1, 70)
        long = source.choice([62, 63, 64, 65, 80, 81, 176, 240, 254, 255, 256, 257, 300]) - source.choice(
            [0, 0, len(number)]
        )
        filler = source.choice(["word ", " ", "é", "x", ". ", "0", "}", "(a) "])
        fill = (filler * long).encode()[: max(long, 0)].decode(errors="ignore")
        mark, end = source.choice(
            [("\\boxed{", "}"), ("<answer>", "</answer>"), ("#### ", ""), ("\nA:", "\n"), ("", "")]
        )
        order = [number, fill, source.choice(["", "8"])]
        batch.append((source.choice(["", "so 5. "]) + mark + "".join(order[:: source.choice([1, -1])]) + end).encode())
    check_texts(batch)


def numbers(said: Sequence[str]) -> list[reference.Value | None]:
    return check_texts([text.encode() for text in said])


EIGHTEEN = (
    "#### 18", "So she has 18 left.\n#### 18.00", "#### $18", "A: 18", "A: 36/2", "a: 18.", "Step 1: 9*2 = 18\nA: 18",
    "The answer is 18.", "The answer is **18**.", "**Answer:** 18 dollars", "**Answer: 18**", "ANSWER IS: +18",
    "Answer:\n18", "\\boxed{18}", "$\\boxed{18}$.", "\\fbox{18}", "\\boxed{x = 18}", "\\boxed{\\$18}",
    "\\boxed{18 \\text{ cm}}", "\\boxed{18.}", "\\boxed{\\text{Monday}, 18}", "<answer>18</answer>",
    "<answer>\n 18 dollars\n</answer>", "<answer>\\boxed{18}</answer>",
    "<think>maybe \\boxed{17}</think>\n\\boxed{18}", "<think>hm</think>18", "\\boxed{17} no, wait: \\boxed{18}",
    "#### 17\n#### 18", "The answer is 17. Sorry, the answer is 18.", "It comes to 18.", "9 * 2 = 18", "= US$18",
    "2 + 16 = 18", "The answer is 18. I used 2 steps.", "The answer is 18 because of the rain", "\\boxed{1.8e1}",
    "\\boxed{\\frac{36}{2}}", "so 18, I think", "所以答案是18。", "#### 18 (eighteen)", "\\boxed{18} % 17",
    "Answer: a total of 18 apples",
)  # fmt: skip


def test_what_a_reader_takes_for_18_is_18() -> None:
    for text, value in zip(EIGHTEEN, numbers(EIGHTEEN), strict=True):
        assert value is not None and value.value == 18, text


NOTHING = (
    # several answers for one
    "#### 18 or 17", "#### 18, 17", "#### 17/18/19", "#### 18 and 17", "A: 18 or nineteen", "\\boxed{17, 18}",
    "\\boxed{18,17}", "\\boxed{18 \\text{ or } 17}", "<answer>18 17</answer>", "<answer>17 or 18</answer>",
    "The answer is 18 (or 17).", "The answer is either 18 or nothing", "answer: 17-18", "\\boxed{18 or }", "17 18",
    "10:18", "1 000 018", "17/18/2020",
    # no answer
    "\\boxed{18", "\\boxed{18\\}", "<answer>18", "<answer>18</answe>", "#### ", "\\boxed{}", "<answer></answer>18",
    "#### none", "18 \\boxed{?}", "#### 18\n<answer>", "18\nThe answer is unknown", "", " ", "eighteen",
    "\\boxed{{18}",
    # said in thoughts alone
    "<think>18", "<think>#### 18", "<think>\\boxed{18}</think>", "<think>18</think> so that is it",
    "<think>A: 18</think>no", "#### 18 <think>", "</think>18<think>", "<think>1</think>18<think>2</think>",
    # the opposite, or other than it looks
    "The answer is not 18", "The answer isn't 18", "#### at least 18", "#### more than 18", "A: minus 18",
    "\\boxed{negative 18}", "#### 18 million", "#### 18 hundred", "18 thousand", "#### 18 and a half",
    "A: 18 squared", "18-dozen", "\\boxed{18x}", "\\boxed{18 x}", "\\boxed{18\\pi}", "\\boxed{\\sqrt{18}}",
    "\\boxed{18i}", "\\boxed{18^2}", "\\boxed{-x+18}", "\\boxed{18!}", "\\boxed{f(18)}", "\\boxed{2\\cdot 18}",
    "\\boxed{18_3}", "#### 18x", "#### 18½", "18²", "#### x-18", "x/18", "#### 18π", "#### 18×", "±18", "±18%",
    "\u201318", "－18", "18^", "2^18", "−x−18", "#### --18", "#### 0,018", "v18", "18k",
    # digits of other scripts
    "#### １８", "１18", "18３", "#### ١٨", "𝟏18", "¹18", "18⁄1",
)  # fmt: skip


def test_what_a_reader_takes_for_no_answer_earns_nothing() -> None:
    for text, value in zip(NOTHING, numbers(NOTHING), strict=True):
        assert value is None, text


def test_the_answer_given_last_is_the_one_that_counts() -> None:
    said = [
        "\\boxed{18} #### 17",
        "#### 18\nA: 17",
        "\\boxed{18}\\boxed{17}",
        "<answer>18</answer> <answer>17</answer>",
        "A: 17\n18 is what others say",
        "#### 17\nnot 18",
        "18 = 17",
    ]
    for text, value in zip(said, numbers(said), strict=True):
        assert value is not None and value.value == 17, text


def test_only_whole_numbers_up_to_a_border_count() -> None:
    """A number that the window cuts off would be another one."""
    said = ["#### " + "x " * 120 + "1" * n for n in range(1, 30)]
    said += ["#### " + "x " * 124 + "1" * n + "." for n in range(1, 12)]
    for text, value in zip(said, numbers(said), strict=True):
        ones = text.count("1")
        assert value is None or value.value == int("1" * ones), text


def test_a_mark_that_begins_outside_the_text_is_none() -> None:
    whole = stacked([b"#### 7 A: 8"] * 2, SIZE)
    cut = whole._replace(start=whole.start + np.array([2, 7] + [0] * (ROWS - 2), np.int32))
    (inside, *_), (beginning, *_) = answers(verdicts, cut, no_golds(), rows=2)
    assert not inside.marked
    assert bytes_of(beginning.text) == b"8"  # for now A: stands at the beginning of a line
