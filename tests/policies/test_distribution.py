"""Temperature, top-k, top-p and min-p, against their definitions written out in numpy."""

from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from statelesschat.policies import GREEDY, Sampling, sample_ids, sampling_logprobs


def by_hand(logits: Any, sampling: Sampling) -> Any:
    """Probabilities in float64, one id after the other from the likeliest down."""
    x = np.asarray(logits, np.float64)
    if sampling.temperature == 0:
        return np.eye(len(x))[int(np.argmax(x))]
    p = np.exp(x / sampling.temperature - (x / sampling.temperature).max())
    p /= p.sum()
    if sampling.top_k and sampling.top_k < len(p):
        p = np.where(p < np.sort(p)[-sampling.top_k], 0, p)
        p /= p.sum()
    if sampling.top_p < 1:
        kept, mass = [], 0.0
        for i in np.argsort(-p, kind="stable"):
            if mass < sampling.top_p:
                kept.append(i)
            mass += p[i]
        p = np.where(p < p[kept].min(), 0, p)
        p /= p.sum()
    p = np.where(p < sampling.min_p * p.max(), 0, p)
    return p / p.sum()


@hypothesis.given(
    logits=st.lists(st.integers(-60, 60).map(lambda i: i / 8 + i * i * 1e-3), min_size=2, max_size=12),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([1.0, 0.913, 0.517, 0.011]),
    min_p=st.sampled_from([0.0, 0.0513, 0.71]),
)
def test_the_distribution_is_the_one_defined(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature, top_k, top_p, min_p)
    found = np.exp(np.asarray(sampling_logprobs(np.float32(logits), sampling)))
    np.testing.assert_allclose(found, by_hand(np.float32(logits), sampling), atol=2e-6)


def test_a_batch_is_its_rows_and_greedy_takes_the_first_of_equals() -> None:
    logits = np.float32([[1, 3, 3, 2], [0, 0, 0, 5]])
    assert np.exp(sampling_logprobs(logits, GREEDY)).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
    sampling = Sampling(0.8, 3, 0.9, 0.1)
    whole = sampling_logprobs(logits, sampling)
    rows = jax.vmap(lambda row: sampling_logprobs(row, sampling))(logits)
    np.testing.assert_array_equal(np.asarray(whole), np.asarray(rows))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_k": 2.0}, "top_k=2.0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"min_p": 2.0}, "min_p=2.0"),
    ],
)
def test_what_is_no_distribution_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Sampling(**options)


@pytest.mark.parametrize("size", [1, 2, 5, 259])
def test_ids_are_drawn_as_often_as_they_should_be(size: int) -> None:
    logits = 2 * np.random.default_rng(size).normal(size=size).astype(np.float32)
    logprobs = np.asarray(sampling_logprobs(logits, Sampling(top_k=40)))
    count = 100_000
    drawn = jax.jit(sample_ids)(jax.random.key(size), np.broadcast_to(logprobs, (count, size)))
    found, expected = np.bincount(np.asarray(drawn), minlength=size), count * np.exp(logprobs.astype(np.float64))
    assert found.sum() == count and (found[expected == 0] == 0).all()
    some = expected > 5
    # Pearson's statistic, in standard deviations above its mean.
    degrees = max(int(some.sum()) - 1, 1)
    statistic = ((found - expected)[some] ** 2 / expected[some]).sum()
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5


def test_a_certain_id_is_drawn_whatever_the_random_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of the interval: no id of probability 0 is reached, and NaN gives some id."""
    logprobs = np.full((3, 259), -np.inf, np.float32)
    logprobs[0, 0], logprobs[1, 258], logprobs[2, [17, 100]] = 0, 0, np.log(np.float32(0.5))
    for number, last in ((0.0, 17), (1 - 2.0**-23, 100)):
        monkeypatch.setattr(jax.random, "uniform", lambda key, shape, number=number: np.full(shape, number, np.float32))
        assert sample_ids(jax.random.key(0), logprobs).tolist() == [0, 258, last]
    assert 0 <= int(sample_ids(jax.random.key(0), np.full(259, np.nan, np.float32))) < 259
