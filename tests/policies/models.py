"""Small models and conversations that the tests of policies and learning share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import statelesschat as sc
from statelesschat.data import from_iterable
from statelesschat.policies import Model, TransformerConfig, init_params, transformer

SHAPE = TransformerConfig(vocab_size=259, num_layers=2, width=32, num_heads=2, mlp_width=64)
MODEL = transformer(SHAPE)


def sharp_params(seed: int, shape: TransformerConfig = SHAPE) -> Any:
    """Params whose output is far from uniform, so that what is likeliest depends on what was read."""
    params = init_params(shape, jax.random.key(seed))
    return jax.tree.map_with_path(
        lambda path, leaf: leaf * np.float32(300) if "unembed" in jax.tree_util.keystr(path) else leaf, params
    )


def talk(count: int = 6, **options: Any) -> tuple[sc.Env, Any]:
    """An environment in which every answer is asked again, up to four times, and questions of several lengths."""
    tokenizer = sc.load_tokenizer(None)
    limits = {
        "capacity": 320, "max_messages": 12, "max_message_len": 64, "max_response_len": 6, "max_turns": 4,
        "store_logprobs": True,
    } | options  # fmt: skip
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, **limits))  # type: ignore[arg-type]
    block = codec.encode_messages("user", ["And now? Say more."])
    message = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), block)
    env = sc.with_reply(sc.chat_env(codec.config), Partial(_again, message))
    return env, from_iterable([f"Question {'?' * i}" for i in range(count)], codec)


def _again(message: Any, state: sc.ChatState, action: sc.Action) -> tuple[Any, Any]:
    return message, jnp.bool_(True)


def full_logits(model: Model, params: Any, tokens: Any) -> Any:
    """[B, L, V] of whole conversations, without any cache."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    return model.apply(params, jnp.clip(tokens, 0, model.vocab_size - 1), positions, None)[0]
