"""The training loop as one program: rollout, reward, update, and again, in a `lax.scan`."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from statelesschat.data.cursor import Cursor, make_cursor
from statelesschat.data.drawing import next_batch
from statelesschat.data.rows import Table
from statelesschat.envs.env import Env, EnvState, begin, restart
from statelesschat.envs.loops import rollout
from statelesschat.learn.credit import turn_advantages, turn_returns
from statelesschat.learn.logprobs import token_logprobs
from statelesschat.learn.losses import Loss, grpo_loss, reinforce_loss, token_weights
from statelesschat.learn.recipe import Recipe
from statelesschat.learn.windows import Batch, merge_alike, read_batch, sum_over_windows
from statelesschat.policies.model import check_params


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "optimizer", "reference", "states", "cursor", "key", "update", "halted"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything a run needs to go on, conversations that have not ended among it: a pytree, to donate and to save."""

    params: Any
    optimizer: Any  # the optimiser's state
    reference: Any  # params at the beginning, where there is a KL term; else None
    states: EnvState  # axis B
    cursor: Cursor
    key: PRNGKeyArray
    update: Int[Array, ""]  # int32, updates made so far
    halted: Bool[Array, ""]  # something was not finite: nothing changes any more, `states` are the batch


class Metrics(NamedTuple):
    """What is told of each update; arrays [U], float32 unless said otherwise. Means are over finished conversations."""

    reward: Float[Array, "U"]  # mean total reward of the conversations that ended
    finished: Int[Array, "U"]  # int32, conversations learned from; the means are 0 where there are none
    turns: Float[Array, "U"]  # mean answers to a conversation
    response_tokens: Float[Array, "U"]  # mean ids of an answer
    faults: Int[Array, "U"]  # int32, conversations that ended with a status other than OK
    informative: Float[Array, "U"]  # share of them whose gradient is not 0, as it is where all of a group fare alike
    loss: Float[Array, "U"]
    kl: Float[Array, "U"]  # to the reference, nats; 0 without one
    ratio: Float[Array, "U"]
    clipped: Float[Array, "U"]
    grad_norm: Float[Array, "U"]
    logprob: Float[Array, "U"]  # mean log-probability of a sampled id, nats; less its negative entropy
    steps: Int[Array, "U"]  # int32, of the optimiser
    ids_read: Int[Array, "U"]  # int32, ids whose gradient was computed, padding included
    good: Bool[Array, "U"]  # False from the first update on that brought something not finite


def begin_training(recipe: Recipe, env: Env, table: Table, params: Any, key: PRNGKeyArray | int) -> TrainState:
    """The state before the first update, its conversations at their first prompts.

    Raises:
        ValueError: for params that do not fit the model, and a table or environment of another config.
    """
    check_params(recipe.model, params)
    keys = jax.random.split(jax.random.key(key) if isinstance(key, int) else key, 3)
    cursor, data, _ = next_batch(make_cursor(keys[0]), table, recipe.batch, recipe.repeats)
    states = begin(env, data, keys[1])
    if states.chat.config != recipe.config:
        raise ValueError("the environment is of another config than the recipe; give the recipe states.chat.config")
    # Copies: the state is donated, and its leaves must be no one else's.
    params, reference = (jax.tree.map(jnp.array, params) for _ in range(2))
    return TrainState(
        params=params,
        optimizer=recipe.optimizer.init(params),
        reference=reference if recipe.kl_coefficient else None,
        states=states,
        cursor=cursor,
        key=keys[2],
        update=jnp.int32(0),
        halted=jnp.bool_(False),
    )


@partial(jax.jit, static_argnames=("recipe", "num_updates"), donate_argnames="state")
def train(recipe: Recipe, env: Env, table: Table, state: TrainState, num_updates: int) -> tuple[TrainState, Metrics]:
    """``num_updates`` updates as one compiled program; the state that is handed in is donated.

    In each: ``turns`` answers to every row, rewards and advantages of the groups whose members have all ended, their
    gradient in windows of bucketed width, the optimiser's step, and new prompts for those rows. Groups that have not
    ended go on in the next update; what was sampled before the policy changed is accounted for by the ratio.

    Where a loss, a gradient or a param is not finite nothing is updated, then or later: params, optimiser and
    conversations stay as they were, ``halted`` is set, and ``metrics.good`` is False from there on.

    Args:
        recipe: static, as ``num_updates``.
        env: the environment, whose reward is what is learned.
        table: prompts, as a task's ``make`` gives them.
        state: of `begin_training`, of the call before, or restored.
        num_updates: U.

    Returns:
        The state after the last update, and `Metrics` of arrays [U].
    """

    def update(state: TrainState, _: None) -> tuple[TrainState, Metrics]:
        return jax.lax.cond(state.halted, _skipped, partial(_updated, recipe, env, table), state)

    return jax.lax.scan(update, state, length=num_updates)


def _updated(recipe: Recipe, env: Env, table: Table, state: TrainState) -> tuple[TrainState, Metrics]:
    key, sampling_key = jax.random.split(state.key)
    states, _ = rollout(env, recipe.policy(), state.params, state.states, sampling_key, recipe.num_turns)
    chat = states.chat
    ended = jnp.repeat(jnp.all(chat.done.reshape(-1, recipe.repeats), axis=1), recipe.repeats)
    rows = ended & (chat.info.group_id >= 0)
    returns = jax.vmap(lambda rewards: turn_returns(rewards, recipe.discount))(chat.turn_rewards)
    advantages = turn_advantages(
        returns, chat.turn, chat.info.group_id, rows, repeats=recipe.repeats, baseline=recipe.baseline
    )
    advantages = jnp.where(advantages < 0, advantages * jnp.float32(recipe.negative), advantages)
    batch = read_batch(chat, advantages, rows)
    batch = batch._replace(weights=token_weights(batch.loss_mask, recipe.normalise))
    if recipe.kl_coefficient:
        batch = batch._replace(informative=rows)
    key, order_key = jax.random.split(key)
    learned = _learned(recipe, state, batch, order_key)
    good, losses, steps = learned.good, learned.loss, jnp.maximum(learned.steps, 1).astype(jnp.float32)

    anew = ended & good
    cursor, data, _ = next_batch(state.cursor, table, recipe.batch, recipe.repeats, where=anew)
    keep = lambda new, old: jax.tree.map(lambda x, y: jnp.where(good, x, y), new, old)  # noqa: E731
    after = TrainState(
        params=keep(learned.params, state.params),
        optimizer=keep(learned.optimizer, state.optimizer),
        reference=state.reference,
        # Rows that were dealt nothing, at the end of an epoch, are begun too: as done, and as no one's.
        states=restart(env, states, data, anew),
        cursor=cursor,
        key=key,
        update=state.update + good.astype(jnp.int32),
        halted=~good,
    )
    count = jnp.sum(rows, dtype=jnp.int32)
    answers = jnp.sum(jnp.where(rows, chat.turn, 0))
    mean = lambda values: _mean(values, rows)  # noqa: E731
    return after, Metrics(
        reward=mean(jnp.sum(chat.turn_rewards, axis=1)),
        finished=count,
        turns=mean(chat.turn),
        response_tokens=jnp.sum(batch.loss_mask, dtype=jnp.int32).astype(jnp.float32)
        / jnp.maximum(answers, 1).astype(jnp.float32),
        faults=jnp.sum(rows & (chat.status != 0), dtype=jnp.int32),
        informative=mean(batch.informative),
        loss=losses.loss / steps,
        kl=losses.kl / steps,
        ratio=losses.ratio / steps,
        clipped=losses.clipped / steps,
        grad_norm=learned.norm / steps,
        logprob=jnp.sum(token_weights(batch.loss_mask) * jnp.where(batch.loss_mask, batch.sampled_logprobs, 0)),
        steps=learned.steps,
        ids_read=learned.ids_read,
        good=good,
    )


class _Learned(NamedTuple):
    """Where the optimiser's steps over a batch have come to; loss and norm are sums over the steps."""

    params: Any
    optimizer: Any
    loss: Loss
    norm: Float[Array, ""]
    ids_read: Int[Array, ""]
    steps: Int[Array, ""]
    good: Bool[Array, ""]


def _learned(recipe: Recipe, state: TrainState, batch: Batch, key: PRNGKeyArray) -> _Learned:
    """Steps over a batch: one, or as many as its informative rows fill (rounded), in a new order for each epoch."""
    size = recipe.rows_to_a_step
    batch = merge_alike(batch, recipe.repeats)
    count = jnp.sum(batch.informative, dtype=jnp.int32)
    steps = jnp.int32(1) if recipe.minibatch is None else jnp.maximum((count + size // 2) // size, 1)

    def step(now: _Learned) -> _Learned:
        rows = batch
        if recipe.minibatch is not None:
            drawn = jax.random.uniform(jax.random.fold_in(key, now.steps // steps), batch.informative.shape)
            order = jnp.argsort(jnp.where(batch.informative, drawn, jnp.float32(2)))
            chosen = jax.lax.dynamic_slice(order, (now.steps % steps * size,), (size,))
            rows = jax.tree.map(lambda leaf: leaf[chosen], batch)
            weights = jnp.where(rows.informative[:, None], rows.weights, jnp.float32(0))
            total = jnp.sum(weights)
            rows = rows._replace(weights=weights / jnp.where(total > 0, total, jnp.float32(1)))

        def gradient(part: Batch) -> tuple[Loss, Any]:
            gradient, loss = jax.grad(partial(_part_loss, recipe, state.reference), has_aux=True)(now.params, part)
            return loss, gradient

        (loss, gradients), ids_read = sum_over_windows(gradient, rows, recipe.rows_at_once, recipe.widths)
        norm = _norm(gradients)
        params, optimizer = recipe.step(gradients, now.optimizer, now.params)
        return _Learned(
            params=params,
            optimizer=optimizer,
            loss=jax.tree.map(jnp.add, now.loss, loss),
            norm=now.norm + norm,
            ids_read=now.ids_read + ids_read,
            steps=now.steps + 1,
            good=jnp.isfinite(loss.loss) & jnp.isfinite(norm) & jnp.isfinite(_norm(params)),
        )

    zero, none = jnp.float32(0), jnp.int32(0)
    start = _Learned(
        state.params, state.optimizer, Loss(zero, zero, zero, zero), zero, none, none, jnp.bool_(True)
    )  # fmt: skip
    # A batch from which there is nothing to learn moves nothing, momentum included.
    wanted = jnp.where(count > 0, steps * recipe.epochs, 0)
    return jax.lax.while_loop(lambda now: (now.steps < wanted) & now.good, step, start)


def _norm(tree: Any) -> Float[Array, ""]:
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, start=jnp.float32(0)))


def _part_loss(recipe: Recipe, reference: Any, params: Any, part: Batch) -> tuple[Array, Loss]:
    of = partial(
        token_logprobs, recipe.model, recipe.config, tokens=part.tokens, temperature=recipe.sampling.temperature
    )
    if recipe.loss == "reinforce":
        loss = reinforce_loss(of(params), part.advantages, loss_mask=part.loss_mask, weights=part.weights)
        return loss.loss, loss
    loss = grpo_loss(
        of(params),
        part.advantages,
        loss_mask=part.loss_mask,
        sampled_logprobs=part.sampled_logprobs,
        reference_logprobs=of(reference) if recipe.kl_coefficient else None,
        clip=recipe.clip,
        kl_coefficient=recipe.kl_coefficient,
        kl_estimator=recipe.kl_estimator,
        weights=part.weights,
    )
    return loss.loss, loss


def _skipped(state: TrainState) -> tuple[TrainState, Metrics]:
    zero, none = jnp.float32(0), jnp.int32(0)
    return state, Metrics(
        zero, none, zero, zero, none, zero, zero, zero, zero, zero, zero, zero, none, none, jnp.bool_(False)
    )  # fmt: skip


def _mean(values: Array, rows: Bool[Array, "B"]) -> Float[Array, ""]:
    total = jnp.sum(jnp.where(rows, values.astype(jnp.float32), jnp.float32(0)))
    return total / jnp.maximum(jnp.sum(rows, dtype=jnp.int32), 1).astype(jnp.float32)
