r"""Faults that people have met in graders elsewhere, each tried on its whole kind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelesschat.rewards import group_advantages, numbers_of, token_mean
from tests.rewards.batches import ROWS, SIZE, answers, stacked, verdicts

FORMS = (
    "#### {}", "so\n#### {}\n", "A: {}", "The answer is {}.", "**Answer:** {}", "\\boxed{{{}}}", "$\\boxed{{{}}}$.",
    "\\fbox{{{}}}", "<answer>{}</answer>", "<answer>\n{}\n</answer>", "<think>it is 12</think>It is {}", "It is {}",
    "{}",
)  # fmt: skip


def grades(pairs: list[tuple[str, str]]) -> list[float]:
    """What answers earn, each for its gold number."""
    earned: list[float] = []
    for part in (pairs[i : i + ROWS] for i in range(0, len(pairs), ROWS)):
        full = [*part, *[("", "0")] * (ROWS - len(part))]
        golds = numbers_of([gold for _, gold in full])
        found = answers(verdicts, stacked([answer.encode() for answer, _ in full], SIZE), golds, rows=len(part))
        earned += [float(reward) for _, _, reward in found]
    return earned


def in_every_form(answers: dict[str, list[str]], earn: float) -> None:
    pairs = [(form.format(answer), gold) for gold, said in answers.items() for answer in said for form in FORMS]
    for pair, earned in zip(pairs, grades(pairs), strict=True):
        assert earned == earn, pair


def test_the_sign_counts() -> None:
    right = {"-3": ["-3", "−3", "-3.0", "-$3", "$-3", "-6/2"], "3": ["3", "+3"], "-0.5": ["-1/2", "-.5"]}
    wrong = {"-3": ["3", "+3", "--3", "3-", "30"], "3": ["-3", "−3", "\u20133", "-$3"], "-0.5": ["1/2", "0.5"]}
    in_every_form(right, 1.0)
    in_every_form(wrong, 0.0)


@given(st.integers(-(10**9), 10**9))
def test_the_sign_counts_for_any_number(number: int) -> None:
    pairs = [(f"#### {number}", str(number)), (f"\\boxed{{{number}}}", str(number)), (f"#### {number:,}", str(number))]
    wrong = [(f"#### {-number}", str(number)), (f"\\boxed{{{-number}}}", str(number))]
    assert grades([*pairs, *wrong]) == [1.0] * 3 + [float(number == 0)] * 2


def test_commas_between_thousands_and_currencies_are_no_part_of_the_number() -> None:
    right = ["$70,000.", "70,000", "70000", "70,000.00", "€70,000", "70,000€", "7e4", "+70,000"]
    wrong = ["$7,000", "70", "7,0000", "70,00", "70 000", "70.000", "$70,000,000", "70,000,", "70k"]
    in_every_form({"70000": right}, 1.0)
    in_every_form({"70,000": right}, 1.0)
    in_every_form({"70000": [text for text in wrong if text != "70,000,"]}, 0.0)


def test_nested_braces_are_balanced() -> None:
    right = (
        "\\boxed{\\frac{1}{2}}",
        "\\fbox{\\dfrac{1}{2}}",
        "\\boxed{0.5}",
        "\\boxed{ \\tfrac{1}{2} }",
        "a set \\{ and \\boxed{\\frac{1}{2}}",
        "} \\boxed{\\frac{1}{2}} {",
    )
    wrong = (
        "\\boxed{\\frac{1}{3}}",
        "\\boxed{\\frac{2}{1}}",
        "\\boxed{\\frac{1}{2}",
        "\\boxed{\\frac{1}{2",
        "\\boxed{\\frac{1}{2}\\}",
        "\\boxed{1}/2",
        "\\boxed{1}{2}",
        "1/2 \\boxed{",
        "\\boxed{\\frac{1}{2}} \\boxed{\\frac{1}{2}",
    )
    assert grades([(text, "1/2") for text in (*right, *wrong)]) == [1.0] * len(right) + [0.0] * len(wrong)


def test_every_mark_is_known() -> None:
    in_every_form({"42": ["42", "42.0", "+42", "42."]}, 1.0)
    in_every_form({"42": ["43", "4", "2", "420", "4 2", "42/2"]}, 0.0)


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(1, 9))
def test_a_fraction_is_the_decimal_that_it_equals(top: int, bottom: int, factor: int) -> None:
    gold = f"{top}/{bottom}"
    said = [f"{top * factor}/{bottom * factor}", rf"\frac{{{top}}}{{{bottom}}}", rf"-\tfrac{{{-top}}}{{{bottom}}}"]
    wrong = [f"{top + 1}/{bottom}", f"{top}/{bottom + 1}" if top else "1/7", rf"\frac{{{top + bottom}}}{{{bottom}}}"]
    earned = grades([(f"#### {text}", gold) for text in (*said, *wrong)])
    assert earned == [1.0] * 3 + [0.0] * 3


def test_decimals_and_fractions_are_compared_exactly() -> None:
    in_every_form({"0.5": ["1/2", "0.50", ".5", "50/100", "5e-1", "50%"], "1/3": ["2/6", "1/3"], "0.1": ["1/10"]}, 1.0)
    in_every_form({"0.5": ["1/3", "0.4999999", "0.5000001"], "1/3": ["0.333333333333333333", "0.33"]}, 0.0)


@pytest.mark.parametrize(("ones", "twos"), [(3, 7), (1, 99), (0, 5)])
def test_the_trainable_ids_are_the_only_normaliser(ones: int, twos: int) -> None:
    mask = np.zeros((2, 100), bool)
    mask[0, :ones], mask[1, :twos] = True, True
    values = np.where(np.arange(2)[:, None] == 0, np.float32(1), np.float32(2)) * np.ones((2, 100), np.float32)
    assert float(token_mean(values, mask)) == pytest.approx((ones + 2 * twos) / (ones + twos))


def test_a_group_of_one_has_no_advantage_and_a_method_of_groups_asks_for_more() -> None:
    found = group_advantages(np.float32([9, 1, 0]), np.int32([0, 1, 1]), repeats=2, scale=False)
    assert found.tolist() == [0, 0.5, -0.5]
    with pytest.raises(ValueError, match=r"repeats=1.*next_batch\(\.\.\., repeats=8\)"):
        group_advantages(np.float32([9]), np.int32([0]), repeats=1)
