"""Rewards of tasks: pure functions of a conversation, with the vocabulary as an array of theirs."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from statelesschat.core.types import Action, ChatState
from statelesschat.rewards.matching import numeric_match
from statelesschat.rewards.response import response_text
from statelesschat.rewards.text import Text
from statelesschat.rewards.tokens import TokenBytes


def numeric_reward(vocabulary: TokenBytes, state: ChatState, action: Action) -> Float[Array, ""]:
    """1.0 where the answer's number is ``info.task``, else 0.0; NaN where the answer does not fit its window."""
    text = response_text(state, vocabulary)
    return judged(text, numeric_match(text, state.info.task))


def judged(text: Text, reward: Float[Array, ""]) -> Float[Array, ""]:
    """The reward, or NaN for a text that was not read whole."""
    return jnp.where(text.fits, reward, jnp.float32(jnp.nan))
