"""Estimates of the KL divergence against its exact value, and what their gradients do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statelesschat.rewards import kl_per_token, token_mean

PAIRS = [
    ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ([1.0, 0.0, -1.0], [0.0, 0.0, 0.0]),
    ([0.0, 0.0, 0.0], [0.5, -0.5, 0.2]),
    ([2.0, 0.0, -1.0], [-1.0, 0.5, 1.0]),
    ([0.1, -0.1, 0.0], [0.0, 0.1, -0.1]),
]
SAMPLES = 200_000


def logs(logits: Any) -> jax.Array:
    return jax.nn.log_softmax(jnp.asarray(logits, jnp.float32))


def exact_kl(policy: jax.Array, reference: jax.Array) -> jax.Array:
    return jnp.sum(jnp.exp(policy) * (policy - reference))


def expected(estimator: Any, logits: jax.Array, reference: jax.Array) -> jax.Array:
    """The expectation of an estimate over what the policy samples, as a loss sees it: samples carry no gradient."""
    policy = logs(logits)
    estimates = kl_per_token(policy, reference, jnp.ones(3, bool), estimator)
    return jnp.sum(jax.lax.stop_gradient(jnp.exp(policy)) * estimates)


@pytest.mark.parametrize(("policy", "reference"), PAIRS)
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_mean_over_samples_is_the_exact_divergence(policy: list[float], reference: list[float], estimator: Any) -> None:
    p, q = logs(policy), logs(reference)
    ids = jax.random.categorical(jax.random.key(7), p, shape=(SAMPLES,))
    estimates = np.asarray(kl_per_token(p[ids], q[ids], jnp.ones(SAMPLES, bool), estimator), np.float64)
    error = estimates.std() / np.sqrt(SAMPLES)
    assert abs(estimates.mean() - float(exact_kl(p, q))) < 4 * error + 1e-6
    assert estimator == "k1" or estimates.min() >= 0


@pytest.mark.parametrize(("policy", "reference"), PAIRS)
def test_expectations_are_exact_where_they_are_said_to_be(policy: list[float], reference: list[float]) -> None:
    kl = exact_kl(logs(policy), logs(reference))
    for estimator in ("k1", "k3"):
        np.testing.assert_allclose(expected(estimator, jnp.asarray(policy), logs(reference)), kl, atol=1e-6)
    assert float(expected("k2", jnp.asarray(policy), logs(reference))) >= 0


@pytest.mark.parametrize(("policy", "reference"), PAIRS[1:])
def test_expected_gradients(policy: list[float], reference: list[float]) -> None:
    """Of k2 that of the divergence itself, of k3 that of the divergence the other way round, of k1 none."""
    logits, q = jnp.asarray(policy, jnp.float32), logs(reference)
    grads = {k: jax.grad(lambda x, k=k: expected(k, x, q))(logits) for k in ("k1", "k2", "k3")}
    np.testing.assert_allclose(grads["k1"], 0, atol=1e-6)
    np.testing.assert_allclose(grads["k2"], jax.grad(lambda x: exact_kl(logs(x), q))(logits), atol=1e-6)
    np.testing.assert_allclose(grads["k3"], jax.grad(lambda x: exact_kl(q, logs(x)))(logits), atol=1e-6)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize(("policy", "reference"), PAIRS[1:])
def test_descent_pulls_the_policy_to_the_reference(policy: list[float], reference: list[float], estimator: Any) -> None:
    q = logs(reference)
    step = jax.jit(lambda x: x - 0.3 * jax.grad(lambda x: expected(estimator, x, q))(x))
    logits, last = jnp.asarray(policy, jnp.float32), np.inf
    for _ in range(50):
        now = float(exact_kl(logs(logits), q))
        assert now < last or now < 1e-6
        last, logits = now, step(logits)
    assert last < 1e-2


def test_the_coefficient_counts() -> None:
    """A loss with a term that is left out and one with it differ, and so do their gradients."""
    q, logits = logs([0.5, -0.5, 0.2]), jnp.asarray([1.0, 0.0, -1.0])

    def loss(x: jax.Array, coefficient: float) -> jax.Array:
        return -logs(x)[0] + jnp.float32(coefficient) * expected("k3", x, q)

    assert float(loss(logits, 0.0)) != float(loss(logits, 1.0))
    assert float(loss(logits, 1.0) - loss(logits, 0.0)) == pytest.approx(float(exact_kl(logs(logits), q)), abs=1e-6)
    assert not np.allclose(jax.grad(loss)(logits, 0.0), jax.grad(loss)(logits, 1.0))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, -1e30])
def test_what_is_masked_is_0_and_has_gradient_0(estimator: Any, bad: float) -> None:
    """Logprobs where nothing was sampled are junk: of padding, of prompts, of ids that a filter made impossible."""
    mask = np.array([True, False, True, False])
    logprobs, reference = np.float32([-1, bad, -2, -1]), np.float32([-1.5, -1, -2, bad])

    def loss(logprobs: Any, reference: Any) -> jax.Array:
        return token_mean(kl_per_token(logprobs, reference, mask, estimator), mask)

    clean = loss(np.float32([-1, 7, -2, 7]), np.float32([-1.5, 8, -2, 8]))
    assert float(loss(logprobs, reference)) == float(clean)
    for grad in jax.grad(loss, (0, 1))(logprobs, reference):
        assert np.isfinite(grad).all() and (np.asarray(grad)[~mask] == 0).all() and np.asarray(grad)[0] != 0
    values = kl_per_token(logprobs, reference, mask, estimator)
    assert values.dtype == jnp.float32 and (np.asarray(values)[~mask] == 0).all()


def test_unknown_estimator() -> None:
    with pytest.raises(ValueError, match=r"estimator='k4'; give one of k1, k2, k3"):
        kl_per_token(np.zeros(1, np.float32), np.zeros(1, np.float32), np.ones(1, bool), "k4")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [9.0, np.nan, np.inf])
def test_token_mean_divides_by_the_trainable_ids_of_the_batch(bad: float) -> None:
    """Rows of 3 and 7 trainable ids: each id weighs a tenth, wherever it stands."""
    mask = np.zeros((2, 12), bool)
    mask[0, 1:4], mask[1, 5:12] = True, True
    values = np.full((2, 12), bad, np.float32)
    values[0, 1:4], values[1, 5:12] = 1.0, 2.0
    assert float(token_mean(values, mask)) == pytest.approx((3 * 1 + 7 * 2) / mask.sum())
    grad = np.asarray(jax.jit(jax.grad(token_mean))(values, mask))
    np.testing.assert_allclose(grad, mask / np.float32(10), rtol=1e-6)


def test_token_mean_of_nothing_is_0_and_shapes_have_to_agree() -> None:
    values = np.full((2, 3), np.nan, np.float32)
    assert float(token_mean(values, np.zeros((2, 3), bool))) == 0
    assert not np.asarray(jax.grad(token_mean)(values, np.zeros((2, 3), bool))).any()
    with pytest.raises(ValueError, match=r"values of shape \(2, 3\), a mask of shape \(3,\)"):
        token_mean(values, np.zeros(3, bool))
