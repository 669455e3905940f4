"""A task that a tiny model learns in seconds: to answer a question with its last character."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

import statelesschat as sc
from statelesschat.data import from_iterable
from statelesschat.learn import Recipe
from statelesschat.policies import TransformerConfig, transformer

SHAPE = TransformerConfig(vocab_size=259, num_layers=1, width=32, num_heads=2, mlp_width=64)
MODEL = transformer(SHAPE)
LETTERS = "ABCDEFGH"
LIMITS = {
    "capacity": 128, "max_messages": 8, "max_message_len": 40, "max_prompt_len": 40, "max_response_len": 3,
    "max_turns": 2, "store_logprobs": True,
}  # fmt: skip


def _echoes(state: sc.ChatState, action: sc.Action) -> Any:
    """1 where the first id is the letter, over all that are below 128, a little for being a letter at all."""
    first = action.tokens[0]
    letter = (first >= 65) & (first <= 72)
    return jnp.where(first == state.info.task, jnp.float32(1), jnp.where(letter, jnp.float32(0.25), jnp.float32(0)))


def _again(message: Any, state: sc.ChatState, action: sc.Action) -> tuple[Any, Any]:
    return message, state.reward < jnp.float32(1)


def world(rows: int = 16, **options: Any) -> tuple[sc.Env, Any, sc.Codec]:
    """Environment, table and codec; a wrong answer is asked again."""
    tokenizer = sc.load_tokenizer(None)
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, **(LIMITS | options)))
    block = codec.encode_messages("user", ["No."])
    message = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), block)
    env = sc.with_reply(sc.with_reward(sc.chat_env(codec.config), Partial(_echoes)), Partial(_again, message))
    asked = [{"prompt": f"{'?' * (i % 3)}{LETTERS[i % 8]}", "letter": ord(LETTERS[i % 8])} for i in range(rows)]
    collate = lambda rows: jnp.asarray([row["letter"] for row in rows], jnp.int32)  # noqa: E731
    return env, from_iterable(asked, codec, collate=collate), codec


def recipe(config: sc.ChatConfig, **options: Any) -> Recipe:
    """A small recipe that learns the task."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.01))  # without the clip it collapses at times
    chosen: dict[str, Any] = {"optimizer": optimizer, "batch": 32, "repeats": 4, "buckets": (48, 128)} | options
    return Recipe(model=MODEL, config=config, **chosen)
