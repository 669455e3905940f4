"""The shuffle: a bijection of every size, near uniform, another in each epoch."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelesschat.data.permutation import permuted, radices

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 31, 32, 97, 100, 101, 255, 1000, 7919]


def order(size: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    key = jnp.asarray([seed, seed ^ 77], jnp.uint32)
    return np.asarray(jax.jit(permuted, static_argnums=1)(jnp.arange(size), size, key, jnp.int32(epoch)))


@pytest.mark.parametrize("size", SIZES)
def test_every_row_once(size: int) -> None:
    for seed in range(3):
        assert sorted(order(size, seed)) == list(range(size))


@given(st.integers(1, 2**31 - 1))
def test_the_domain_holds_every_row_and_fits_in_32_bits(size: int) -> None:
    a, b = radices(size)
    assert size <= a * b < size + a
    assert 1 <= b <= a < 2**16
    assert a * b < 2**32


@pytest.mark.parametrize("size", [2**31 - 1, 2**31 - 2**16, 1_000_003, 10**9, 46341**2 - 46340])
def test_large_sizes_on_a_sample(size: int) -> None:
    rng = np.random.default_rng(size)
    places = np.unique(np.concatenate([rng.integers(0, size, 20_000), np.arange(2000), size - 1 - np.arange(2000)]))
    key = jnp.asarray([3, 4], jnp.uint32)
    rows = np.asarray(jax.jit(permuted, static_argnums=1)(jnp.asarray(places, jnp.int32), size, key, jnp.int32(5)))
    assert rows.min() >= 0
    assert rows.max() < size
    assert len(np.unique(rows)) == len(places)


def test_epochs_and_keys_give_other_orders() -> None:
    orders = {order(97, seed, epoch).tobytes() for seed in range(4) for epoch in range(50)}
    assert len(orders) == 200


@pytest.mark.parametrize("size", [2, 3, 5, 11, 16, 30])
def test_places_and_rows_are_near_independent(size: int) -> None:
    """Chi-square of the matrix place by row over many epochs; for each size the figure is fixed by the seed."""
    draws = 4000
    key = jnp.asarray([11, 12], jnp.uint32)
    many = jax.jit(jax.vmap(lambda epoch: permuted(jnp.arange(size), size, key, epoch)))(jnp.arange(draws))
    counts = np.zeros((size, size))
    np.add.at(counts, (np.tile(np.arange(size), draws), np.asarray(many).ravel()), 1)
    freedom = (size - 1) ** 2
    statistic = ((counts - draws / size) ** 2 / (draws / size)).sum() * (size - 1) / size
    assert abs(statistic - freedom) < 4 * (2 * freedom) ** 0.5 + 4


@pytest.mark.parametrize(("size", "orders"), [(3, 6), (4, 24)])
def test_all_orders_are_near_equally_likely(size: int, orders: int) -> None:
    draws = 6000
    keys = jax.random.bits(jax.random.key(1), (draws, 2), jnp.uint32)
    many = jax.jit(jax.vmap(lambda key: permuted(jnp.arange(size), size, key, jnp.int32(0))))(keys)
    counts = collections.Counter(map(bytes, np.asarray(many, np.int8)))
    assert len(counts) == orders
    statistic = sum((n - draws / orders) ** 2 / (draws / orders) for n in counts.values())
    assert statistic < orders - 1 + 4 * (2 * (orders - 1)) ** 0.5


def test_neighbours_are_not_kept() -> None:
    steps = np.diff(order(7919)) % 7919
    assert collections.Counter(steps.tolist()).most_common(1)[0][1] < 10
