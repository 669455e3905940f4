"""Returns and advantages of turns, by hand."""

import jax
import numpy as np
import pytest

from statelesschat.learn import turn_advantages, turn_returns

GROUP = np.int32([7, 7, 7, 8, 9, 9])  # 8 is alone
TURNS = np.int32([2, 2, 1, 2, 1, 2])
VALID = np.array([1, 1, 1, 1, 1, 0], bool)
RETURNS = np.float32([[1, 4], [0, 2], [5, 99], [3, 3], [2, 99], [9, 9]])


def test_returns_count_later_turns_less() -> None:
    rewards = np.float32([1, 0, 2])
    assert turn_returns(rewards, 1.0).tolist() == [3, 2, 2]
    assert turn_returns(rewards, 0.5).tolist() == [1.5, 1, 2]
    assert turn_returns(rewards, 0.0).tolist() == [1, 0, 2]
    with pytest.raises(ValueError, match="discount=1.5"):
        turn_returns(rewards, 1.5)


def test_turns_are_compared_with_the_same_turns_of_the_group() -> None:
    found = turn_advantages(RETURNS, TURNS, GROUP, VALID, repeats=2, baseline="group")
    np.testing.assert_allclose(found, [[-1, 1], [-2, -1], [3, 0], [0, 0], [0, 0], [0, 0]], atol=1e-6)
    scaled = np.asarray(turn_advantages(RETURNS, TURNS, GROUP, VALID, repeats=2))
    np.testing.assert_allclose(scaled[:3, 0], np.array([-1, -2, 3]) / np.std([1, 0, 5]), rtol=1e-4)
    ratio = turn_advantages(RETURNS, TURNS, GROUP, VALID, repeats=2, baseline="group_ratio")
    np.testing.assert_allclose(ratio, [[-1 / 2, 1 / 3], [-1, -1 / 3], [3 / 2, 0], [0, 0], [0, 0], [0, 0]], atol=1e-6)


def test_of_the_whole_batch_and_without_a_baseline() -> None:
    found = np.asarray(turn_advantages(RETURNS, TURNS, GROUP, VALID, repeats=1, baseline="batch"))
    np.testing.assert_allclose(found[:5, 0], np.array([1, 0, 5, 3, 2]) - 11 / 5, rtol=1e-5)
    np.testing.assert_allclose(found[[0, 1, 3], 1], np.array([4, 2, 3]) - 3, atol=1e-6)
    assert not found[[2, 4, 5], 1].any() and not found[5].any()
    plain = turn_advantages(RETURNS, TURNS, GROUP, VALID, repeats=1, baseline="none")
    assert plain.tolist() == [[1, 4], [0, 2], [5, 0], [3, 3], [2, 0], [0, 0]]


def test_groups_that_never_succeed_have_no_ratio_and_no_nan() -> None:
    zeros = np.zeros((4, 1), np.float32)
    found = turn_advantages(
        zeros, np.int32([1] * 4), np.int32([0, 0, 1, 1]), np.ones(4, bool), repeats=2, baseline="group_ratio"
    )
    assert not np.asarray(found).any()


def test_one_row_is_no_group() -> None:
    with pytest.raises(ValueError, match="repeats=1: a group method compares"):
        jax.jit(lambda x: turn_advantages(x, TURNS, GROUP, VALID, repeats=1))(RETURNS)
    with pytest.raises(ValueError, match="baseline='mean'"):
        turn_advantages(RETURNS, TURNS, GROUP, VALID, repeats=2, baseline="mean")  # type: ignore[arg-type]
