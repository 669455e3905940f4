"""Log-probabilities of ids that are there already: one pass over whole conversations."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from statelesschat.core.config import ChatConfig
from statelesschat.policies.distribution import logprobs_of
from statelesschat.policies.model import Model
from statelesschat.policies.sampler import real_logits


def token_logprobs(
    model: Model, config: ChatConfig, params: Any, tokens: Int[Array, "B W"], temperature: float = 1.0
) -> Float[Array, "B W"]:
    """Log p(tokens[t] | tokens before t) in nats, 0 at t = 0. float32[B, W].

    What a sampler of that temperature stores, up to rounding. Padding on the right changes nothing before it.

    Args:
        model: as the sampler's.
        config: of the conversations; ids that its tokenizer lacks take no part.
        params: the model's.
        tokens: int32[B, W], as the view `prompt` gives them, or its first W columns.
        temperature: what logits are divided by.
    """
    batch, width = tokens.shape
    known = jnp.clip(tokens, 0, config.template.vocab_size - 1)
    positions = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32)[None], (batch, width))
    logits, _ = model.apply(params, known, positions, None)
    logits = real_logits(logits[:, :-1], config)
    if temperature != 1:
        logits = logits / jnp.float32(temperature)
    of_next = logprobs_of(jax.nn.log_softmax(logits, axis=-1), known[:, 1:])
    return jnp.pad(of_next, ((0, 0), (1, 0)))
