"""Advantages of the members of a group against numpy, group by group."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelesschat.rewards import group_advantages

BATCH = 12
ADVANTAGES = jax.jit(group_advantages, static_argnames=("repeats", "scale"))


def reference(rewards: np.ndarray, groups: np.ndarray, valid: np.ndarray, scale: bool) -> np.ndarray:
    out = np.zeros(len(rewards))
    for group in set(groups[valid].tolist()):
        members = (groups == group) & valid
        if members.sum() > 1:
            values = rewards[members].astype(np.float64)
            out[members] = (values - values.mean()) / ((values.std() + 1e-6) if scale else 1)
    return out


@given(
    st.lists(st.sampled_from([0.0, 1.0, 0.25, -2.0, 3.5]), min_size=BATCH, max_size=BATCH),
    st.lists(st.integers(-1, 4), min_size=BATCH, max_size=BATCH),
    st.lists(st.booleans(), min_size=BATCH, max_size=BATCH),
    st.booleans(),
)
def test_advantages_are_those_of_numpy(rewards: list, groups: list, valid: list, scale: bool) -> None:
    """Members need not stand side by side, groups may have any size, and rows that are not valid count nowhere."""
    arrays = np.float32(rewards), np.int32(groups), np.array(valid)
    junk = np.where(arrays[2], arrays[0], np.float32(np.nan))
    found = np.asarray(ADVANTAGES(junk, *arrays[1:], repeats=4, scale=scale))
    np.testing.assert_allclose(found, reference(*arrays, scale), atol=1e-4)
    assert (found[~arrays[2]] == 0).all()


@pytest.mark.parametrize("scale", [True, False])
def test_a_group_of_one_and_a_group_of_equals_are_exactly_0(scale: bool) -> None:
    """0.1 three times over has a sum that is not three times 0.1 in float32."""
    rewards = np.float32([5, 0.1, 0.1, 0.1, -7, 0.7, 0.7])
    found = group_advantages(rewards, np.int32([3, 1, 1, 1, 9, 4, 4]), repeats=2, scale=scale)
    assert found.tolist() == [0] * 7


def test_a_group_that_lost_all_but_one_member_is_0() -> None:
    found = group_advantages(np.float32([1, 0, 0]), np.int32([1, 1, 2]), np.array([True, False, True]), repeats=2)
    assert found.tolist() == [0, 0, 0]


def test_a_group_may_lie_across_the_batch() -> None:
    found = group_advantages(np.float32([1, 5, 0, 5]), np.int32([0, 1, 0, 1]), repeats=2, scale=False)
    assert found.tolist() == [0.5, 0, -0.5, 0]


@pytest.mark.parametrize("repeats", [1, 0, -1])
def test_repeats_below_two_are_refused(repeats: int) -> None:
    with pytest.raises(ValueError, match=f"repeats={repeats}.*two|twice or more"):
        group_advantages(np.float32([1, 0]), np.int32([0, 0]), repeats=repeats)
