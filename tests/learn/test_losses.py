"""Losses and what they are normalised by, computed by hand; and that what is masked out has no gradient at all."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from statelesschat.learn import grpo_loss, reinforce_loss, token_weights

MASK = np.array([[0, 1, 1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1]], bool)  # 3 and 7 ids that were sampled
ADVANTAGES = np.array([2.0, -1.0], np.float32)


def logprobs(fill: float = 0.0) -> Any:
    values = -np.arange(1, 17, dtype=np.float32).reshape(2, 8) / 8
    return np.where(MASK, values, np.float32(fill))


def test_every_sampled_id_weighs_the_same_or_every_row_does() -> None:
    np.testing.assert_allclose(token_weights(MASK)[MASK], np.full(10, 0.1), rtol=1e-6)
    by_row = np.asarray(token_weights(MASK, "sequence"))
    np.testing.assert_allclose(by_row[0][MASK[0]], np.full(3, 1 / 6), rtol=1e-6)
    np.testing.assert_allclose(by_row[1][MASK[1]], np.full(7, 1 / 14), rtol=1e-6)
    padded = np.pad(MASK, ((0, 3), (0, 5)))  # neither rows without sampled ids nor padding count
    for normalise in ("token", "sequence"):
        found = np.asarray(token_weights(padded, normalise))  # type: ignore[arg-type]
        np.testing.assert_array_equal(found[:2, :8], np.asarray(token_weights(MASK, normalise)))  # type: ignore[arg-type]
        assert found.sum() == pytest.approx(1) and not found[2:].any()


@pytest.mark.parametrize(("normalise", "shares"), [("token", (0.1, 0.1)), ("sequence", (1 / 6, 1 / 14))])
def test_losses_by_hand(normalise: Any, shares: tuple[float, float]) -> None:
    p = logprobs().astype(np.float64)
    expected = sum(
        -ADVANTAGES[row] * p[row, t] * shares[row] for row in range(2) for t in range(8) if MASK[row, t]
    )  # fmt: skip
    found = reinforce_loss(logprobs(), ADVANTAGES, loss_mask=MASK, normalise=normalise)
    assert float(found.loss) == pytest.approx(expected, rel=1e-5)

    rng = np.random.default_rng(3)
    old = np.where(MASK, p + rng.normal(0, 1.0, p.shape), 0).astype(np.float32)
    reference = np.where(MASK, p + rng.normal(0, 0.4, p.shape), 0).astype(np.float32)
    expected, kl, ratios, held = 0.0, 0.0, 0.0, 0.0
    for row in range(2):
        for t in np.flatnonzero(MASK[row]):
            ratio = math.exp(p[row, t] - old[row, t])
            bounded = min(max(ratio, 0.8), 1.3)
            gain = min(ratio * ADVANTAGES[row], bounded * ADVANTAGES[row])
            d = reference[row, t] - p[row, t]
            expected -= shares[row] * gain
            kl += shares[row] * (math.exp(d) - 1 - d)
            ratios += shares[row] * ratio
            held += shares[row] * (bounded * ADVANTAGES[row] < ratio * ADVANTAGES[row])
    found = jax.jit(
        lambda x: grpo_loss(
            x,
            ADVANTAGES,
            loss_mask=MASK,
            sampled_logprobs=old,
            reference_logprobs=reference,
            clip=(0.2, 0.3),
            kl_coefficient=0.05,
            normalise=normalise,
        )
    )(logprobs())
    assert float(found.loss) == pytest.approx(expected + 0.05 * kl, rel=1e-4)
    assert float(found.kl) == pytest.approx(kl, rel=1e-4)
    assert float(found.ratio) == pytest.approx(ratios, rel=1e-4)
    assert float(found.clipped) == pytest.approx(held, rel=1e-4) and 0 < held < 1


@pytest.mark.parametrize("fill", [0.0, 3.0, -math.inf, math.inf, math.nan])
def test_the_gradient_of_masked_ids_is_exactly_zero_whatever_stands_there(fill: float) -> None:
    junk = np.where(MASK, np.float32(-0.5), np.float32(fill))
    advantages = np.where(MASK, np.float32(1.5), np.float32(fill))
    losses = (
        lambda x: reinforce_loss(x, advantages, loss_mask=MASK).loss,
        lambda x: (
            grpo_loss(
                x, advantages, loss_mask=MASK, sampled_logprobs=junk, reference_logprobs=junk, kl_coefficient=0.1
            ).loss
        ),
    )
    for loss in losses:
        value, gradient = jax.value_and_grad(loss)(logprobs(fill))
        assert math.isfinite(value)
        np.testing.assert_array_equal(np.asarray(gradient)[~MASK], 0)
        assert (np.asarray(gradient)[MASK] != 0).all()


def test_on_policy_the_gradient_of_grpo_is_that_of_reinforce() -> None:
    gradients = [
        jax.grad(lambda x: reinforce_loss(x, ADVANTAGES, loss_mask=MASK).loss)(logprobs()),
        jax.grad(lambda x: grpo_loss(x, ADVANTAGES, loss_mask=MASK).loss)(logprobs()),
        jax.grad(lambda x: grpo_loss(x, ADVANTAGES, loss_mask=MASK, sampled_logprobs=logprobs()).loss)(logprobs()),
    ]
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-6)
    np.testing.assert_allclose(gradients[0], gradients[2], rtol=1e-6)


def test_clipping_holds_back_only_what_has_gone_far_enough() -> None:
    mask = np.array([[True, True, True, True]])
    now = np.log(np.float32([[1.5, 1.5, 0.5, 0.5]]))  # ratios, as what was sampled has log-probability 0
    advantages = np.float32([[1, -1, 1, -1]])
    gradient = jax.grad(
        lambda x: grpo_loss(x, advantages, loss_mask=mask, sampled_logprobs=np.zeros((1, 4), np.float32)).loss
    )(now)
    assert (np.asarray(gradient) == 0).tolist() == [[True, False, False, True]]


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    weights = np.asarray(token_weights(MASK, "sequence"))
    parts = [
        reinforce_loss(
            logprobs()[row : row + 1],
            ADVANTAGES[row : row + 1],
            loss_mask=MASK[row : row + 1],
            weights=weights[row : row + 1],
        ).loss
        for row in range(2)
    ]
    whole = reinforce_loss(logprobs(), ADVANTAGES, loss_mask=MASK, normalise="sequence").loss
    assert float(jnp.sum(jnp.stack(parts))) == pytest.approx(float(whole), rel=1e-6)


def test_bad_arguments_are_told() -> None:
    for arguments, told in (
        ((logprobs()[0], ADVANTAGES, MASK[0]), r"both are \[B, L\]"),
        ((logprobs(), ADVANTAGES, MASK[:, :4]), r"both are \[B, L\]"),
        ((logprobs(), ADVANTAGES[:1], MASK), "advantages"),
        ((logprobs(), ADVANTAGES, MASK.astype(np.int32)), r"int32\[2, 8\]; give a bool"),
        ((logprobs(), ADVANTAGES, np.zeros_like(MASK)), "False everywhere"),
    ):
        x, advantages, mask = arguments
        with pytest.raises(ValueError, match=told):
            reinforce_loss(x, advantages, loss_mask=mask)
    with pytest.raises(TypeError, match="loss_mask"):
        grpo_loss(logprobs(), ADVANTAGES)  # type: ignore[call-arg]
    for options, told in (
        ({"normalise": "row"}, "'token' or 'sequence'"),
        ({"clip": (2.0, 0.2)}, "clip="),
        ({"kl_coefficient": 0.1}, "needs reference_logprobs"),
        ({"reference_logprobs": logprobs(), "kl_estimator": "k1"}, "'k2' or 'k3'"),
        ({"sampled_logprobs": logprobs()[:, :4]}, "sampled_logprobs"),
    ):
        with pytest.raises(ValueError, match=told):
            grpo_loss(logprobs(), ADVANTAGES, loss_mask=MASK, **options)  # type: ignore[arg-type]
