"""Imitation of given answers: the supervised start that a policy needs before rewards can teach it."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from statelesschat.core.types import Action
from statelesschat.data.cursor import Cursor, make_cursor
from statelesschat.data.drawing import next_batch
from statelesschat.data.rows import Table
from statelesschat.envs.env import Env, begin
from statelesschat.learn.logprobs import token_logprobs
from statelesschat.learn.losses import reinforce_loss, token_weights
from statelesschat.learn.recipe import Recipe
from statelesschat.learn.windows import Batch, read_batch, sum_over_windows
from statelesschat.policies.model import check_params


class Imitation(NamedTuple):
    """What imitation goes on with; a pytree."""

    params: Any
    optimizer: Any  # the optimiser's state
    cursor: Cursor


def begin_imitation(recipe: Recipe, params: Any, key: PRNGKeyArray | int) -> Imitation:
    """The state before the first update. ValueError for params that do not fit the model."""
    check_params(recipe.model, params)
    params = jax.tree.map(jnp.array, params)
    return Imitation(params, recipe.optimizer.init(params), make_cursor(key))


@partial(jax.jit, static_argnames=("recipe", "num_updates"), donate_argnames="state")
def imitate(
    recipe: Recipe, env: Env, table: Table, answers: Action, state: Imitation, num_updates: int
) -> tuple[Imitation, Float[Array, "U"]]:
    """``num_updates`` updates towards given first answers, as one program; returns the state and each update's loss.

    The answers go through the environment as sampled ones do, so the ids learned are those of the loss mask, in the
    very conversations that a rollout has. Of the recipe it takes model, optimiser, batch, microbatch, buckets and
    normalise.

    Args:
        recipe: static, as ``num_updates``.
        env: the environment.
        table: prompts, N rows.
        answers: an `Action` with a leading axis, ``answers[row_id]`` the answer to the row of that id, as
            ``codec.encode_actions`` gives them for a table's rows in order.
        state: of `begin_imitation`, or of the call before; it is donated.
        num_updates: U.
    """

    def update(state: Imitation, _: None) -> tuple[Imitation, Array]:
        cursor, data, valid = next_batch(state.cursor, table, recipe.batch)
        shown = jax.tree.map(lambda leaf: jnp.asarray(leaf)[jnp.maximum(data.info.row_id, 0)], answers)
        logprobs: Any = jnp.zeros(shown.tokens.shape, jnp.float32)
        shown = Action(shown.tokens, shown.length, logprobs, shown.finished)
        states = jax.vmap(env.step)(begin(env, data, 0), shown)
        ones = jnp.ones((recipe.batch, recipe.config.max_turns), jnp.float32)
        batch = read_batch(states.chat, ones, valid)
        batch = batch._replace(weights=token_weights(batch.loss_mask, recipe.normalise))

        def gradient(part: Batch) -> tuple[Array, Any]:
            return jax.value_and_grad(
                lambda params: (
                    reinforce_loss(
                        token_logprobs(recipe.model, recipe.config, params, part.tokens),
                        part.advantages,
                        loss_mask=part.loss_mask,
                        weights=part.weights,
                    ).loss
                )
            )(state.params)

        (loss, gradients), _read = sum_over_windows(gradient, batch, recipe.rows_at_once, recipe.widths)
        return Imitation(*recipe.step(gradients, state.optimizer, state.params), cursor), loss

    return jax.lax.scan(update, state, length=num_updates)
