"""Windows: the same gradient however the batch is cut, and no window wider or oftener read than it has to be."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statelesschat.learn import bucket_widths, token_weights
from statelesschat.learn.windows import Batch, merge_alike, sum_over_windows

B, L, V = 8, 24, 11
RNG = np.random.default_rng(0)


def batch(alike: bool = False) -> Batch:
    length = np.array([5, 23, 9, 12, 24, 3, 16, 8], np.int32)
    tokens = RNG.integers(0, V, (B, L)).astype(np.int32)
    mask = (np.arange(L)[None] < length[:, None]) & (np.arange(L)[None] >= 2)
    advantages = np.where(mask, RNG.normal(size=(B, 1)).astype(np.float32), 0)
    advantages[5] = 0
    if alike:
        length[:] = 10
        tokens[1], tokens[3], tokens[6] = tokens[0], tokens[0], tokens[5]
        mask[:] = (np.arange(L) >= 2) & (np.arange(L) < 10)
        advantages = np.where(mask, np.repeat(np.float32([1, 2]), 4)[:, None], np.float32(0))
    weights = token_weights(mask)
    return jax.tree.map(
        jnp.asarray,
        Batch(tokens, mask, np.zeros((B, L), np.float32), advantages, weights, length, (advantages != 0).any(1)),
    )


def gradient(table: Any, part: Batch) -> Any:
    """Of a bigram model, for which padding on the right plays no role."""

    def loss(table: Any) -> Any:
        logprobs = jax.nn.log_softmax(table[part.tokens[:, :-1]])
        picked = jnp.take_along_axis(logprobs, part.tokens[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum((part.weights * part.advantages)[:, 1:] * picked)

    return jax.value_and_grad(loss)(table)


TABLE = jnp.asarray(RNG.normal(size=(V, V)).astype(np.float32))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_the_sum_over_windows_is_the_gradient_of_the_whole(size: int) -> None:
    rows = batch()
    widths: list[int] = []

    def counted(part: Batch) -> Any:
        widths.append(part.tokens.shape[1])
        return gradient(TABLE, part)

    found, read = jax.jit(lambda rows: sum_over_windows(counted, rows, size, (8, 16, 24)))(rows)
    loss, expected = gradient(TABLE, rows)
    np.testing.assert_allclose(found[1], expected, atol=1e-6)
    assert float(found[0]) == pytest.approx(float(loss), abs=1e-6)
    assert set(widths) == {8, 16, 24} and len(widths) <= 4  # one trace for each bucket, one for the shapes
    # Rows of lengths 3 (nothing to learn), 5, 8, 9, 12, 16, 23, 24.
    expected_read = {1: 0 + 8 + 8 + 16 * 3 + 24 * 2, 2: 16 + 32 + 32 + 48, 4: 64 + 96, 8: 192}
    assert int(read) == expected_read[size]


def test_rows_that_are_alike_are_read_once_for_all() -> None:
    rows = batch(alike=True)
    merged = jax.jit(merge_alike, static_argnames="repeats")(rows, repeats=4)
    assert merged.informative.tolist() == [True, False, True, False, True, True, False, True]
    for one, other in zip(gradient(TABLE, merged), gradient(TABLE, rows)):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert float(merged.weights.sum()) == pytest.approx(1, abs=1e-5)


def test_bucket_widths_rise_to_the_capacity() -> None:
    for capacity in (2, 31, 32, 33, 48, 320, 4096):
        widths = bucket_widths(capacity)
        assert widths[-1] == capacity and list(widths) == sorted(set(widths))
        assert all(later <= 1.5 * earlier + 1 for earlier, later in zip(widths, widths[1:]))
