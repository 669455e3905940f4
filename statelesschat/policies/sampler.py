"""Any causal model as a policy: answers sampled on device, with a cache that is kept across turns."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from statelesschat.core.config import ChatConfig, Static
from statelesschat.core.types import Action, ChatState, Count
from statelesschat.core.views import remaining
from statelesschat.envs.env import Bound, EnvState
from statelesschat.policies.distribution import Sampling, logprobs_of, sample_ids, sampling_logprobs
from statelesschat.policies.model import Cache, Model, check_params

_CHUNK = 256  # ids of a row that are fed at once where nothing is sampled


class Memory(NamedTuple):
    """What a sampler keeps between the turns of a batch."""

    cache: Cache
    cached: Int[Array, "B"]  # int32, ids of each conversation that the cache holds, counted from its beginning
    written: Int[Array, "B"]  # int32, where its last sampled id ended when that was so; by it a row begun anew is seen
    sampling_logprobs: Float[Array, "B R"]  # float32, nats, of the last answers under the sampling distribution
    model_logprobs: Float[Array, "B R"]  # float32, nats, of the same ids under the model


class Sampler(NamedTuple):
    """A `Policy` of a model: two pure functions of a batch of states, and a pytree."""

    init: Partial  # (params, states) -> Memory
    act: Partial  # (params, memory, key, states) -> (memory, Action)


@dataclass(frozen=True, eq=False)
class _Plan(Static):
    model: Model
    config: ChatConfig
    sampling: Sampling
    max_tokens: int
    stop_ids: tuple[int, ...]
    stored: str
    chunk: int
    shared: int
    rows: int | None
    slots: tuple[int, ...]


def sampler(
    model: Model,
    config: ChatConfig,
    sampling: Sampling | None = None,
    *,
    max_tokens: int | None = None,
    stop_ids: tuple[int, ...] = (),
    stored_logprobs: str = "sampling",
    chunk: int | None = None,
    shared: int = 1,
    rows: int | None = None,
    slots: tuple[int, ...] | None = None,
) -> Sampler:
    """A policy that answers by sampling from a model.

    A conversation only grows, so each id is fed once: the cache is kept from turn to turn, and an answer begins with
    feeding what was written since the last one. Rows may be of any lengths. An answer ends with a stop id, which is
    part of it, or where its budget ends: ``max_tokens``, or what is left of the capacity. The loop ends when all rows
    have ended. Rows that are done, or that no answer is open in, get an answer of length 0. One trace serves every
    turn.

    A row that was begun anew or rewound since the last call is fed from its beginning.

    Args:
        model: `transformer`, an adapter's, or your own `Model`.
        config: the conversations'. Ids the tokenizer does not have (logits from ``template.vocab_size`` on) are never
            sampled and count in no log-probability.
        sampling: temperature and the rest; None: from the model's own distribution.
        max_tokens: ids of an answer, R, at most ``config.max_response_len``, which is the default.
        stop_ids: further ids that end an answer; the template's own always do.
        stored_logprobs: which log-probabilities go into the action, where the config stores them: ``"sampling"``, under
            the distribution that was sampled from, as an importance ratio needs; or ``"model"``. Both are in `Memory`.
        chunk: ids of a row that are fed at once before an answer; by default what a prompt or a message may have,
            at most 256.
        shared: rows that stand side by side and begin with the same prompt, as the repeats of `next_batch` do; ``init``
            then feeds what the first of them has once for all. Where rows differ after all, each is fed what it does
            not share, so it changes what is computed twice and nothing else. It divides B.
        rows: how many are computed at once, dividing B; those that answer come first, and no more are computed than
            hold them, which pays in later turns of episodes of which many have ended. None: always all.
        slots: rising numbers of cache slots, below the capacity, which is always the last of them. Rows that answer are
            taken in order of what they need, and read and write no more of the cache than the smallest of these that
            holds it; each is compiled for itself. None: always the whole cache.

    Raises:
        ValueError: here, for a model with fewer ids than the tokenizer and for options that cannot be; and at trace,
            for params that do not fit the model.

    Example:
        >>> import jax, statelesschat as sc
        >>> from statelesschat.policies import TransformerConfig, init_params, sampler, transformer
        >>> env, table = sc.tasks.arithmetic.make(None, 4)
        >>> states = sc.begin(env, table, 0)
        >>> config = TransformerConfig(vocab_size=259)
        >>> policy = sampler(transformer(config), states.chat.config)
        >>> params = init_params(config, jax.random.key(0))
        >>> states, turns = sc.rollout(env, policy, params, states, jax.random.key(1), num_turns=2)
        >>> states.chat.turn.tolist(), turns.reward.shape
        ([2, 2, 2, 2], (2, 4))
    """
    vocab = config.template.vocab_size
    if model.vocab_size < vocab:
        raise ValueError(
            f"the model has logits for {model.vocab_size} ids, the tokenizer has {vocab}; others could "
            "be neither read nor written. Use the model's own tokenizer, or a model with a larger vocabulary"
        )
    limit = config.max_response_len if max_tokens is None else max_tokens
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= config.max_response_len:
        raise ValueError(
            f"max_tokens={max_tokens!r}; give 1 to {config.max_response_len}, or a config with more max_response_len"
        )
    strange = [i for i in stop_ids if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < vocab]
    if strange:
        raise ValueError(f"stop_ids {strange}: the tokenizer's ids are whole numbers below {vocab}")
    if stored_logprobs not in ("sampling", "model"):
        raise ValueError(f"stored_logprobs={stored_logprobs!r}; give 'sampling' or 'model'")
    width = min(_CHUNK, max(config.max_prompt_len, config.max_message_len)) if chunk is None else chunk
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ValueError(f"chunk={chunk!r}; give a whole number of ids from 1 on")
    if isinstance(shared, bool) or not isinstance(shared, int) or shared < 1:
        raise ValueError(f"shared={shared!r}; give a whole number of rows from 1 on")
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
        raise ValueError(f"rows={rows!r}; give a whole number from 1 on, or None for all")
    within = () if slots is None else tuple(slots)
    if list(within) != sorted({size for size in within if isinstance(size, int) and 1 <= size < config.capacity}):
        raise ValueError(f"slots={slots!r}; give rising whole numbers from 1 to {config.capacity - 1}")
    stops = tuple(sorted({*config.template.stop_ids, *stop_ids}))
    chosen = sampling or Sampling()
    width = min(width, config.capacity)
    plan = _Plan(model, config, chosen, limit, stops, stored_logprobs, width, shared, rows, (*within, config.capacity))
    return Sampler(Partial(Bound(_init, (plan,))), Partial(Bound(_act, (plan,))))


def _init(plan: _Plan, params: Any, states: EnvState | ChatState) -> Memory:
    check_params(plan.model, params)
    chat = _chat(plan, states)
    batch = chat.counts.shape[0]
    if batch % plan.shared:
        raise ValueError(f"a batch of {batch} is no multiple of shared={plan.shared}")
    blank = jnp.zeros((batch, plan.max_tokens), jnp.float32)
    cached = jnp.zeros(batch // plan.shared, jnp.int32)
    cache = plan.model.init_cache(batch // plan.shared, plan.config.capacity)
    if plan.shared > 1:
        first = jax.tree.map(lambda leaf: leaf[:: plan.shared], chat)
        cache, cached = _fed(plan, params, cache, cached, first, ~first.done & first.awaits_answer)
        cache, cached, tokens = jax.tree.map(
            lambda leaf: jnp.repeat(leaf, plan.shared, axis=0), (cache, cached, first.tokens)
        )
        alike = jnp.cumprod((tokens == chat.tokens).astype(jnp.int32), axis=1)
        cached = jnp.minimum(cached, jnp.sum(alike, axis=1))
    return Memory(cache, cached, chat.counts[:, Count.DELTA], blank, blank)


def _act(
    plan: _Plan, params: Any, memory: Memory, key: PRNGKeyArray, states: EnvState | ChatState
) -> tuple[Memory, Action]:
    chat = _chat(plan, states)
    batch = chat.counts.shape[0]
    size = batch if plan.rows is None else min(plan.rows, batch)
    if batch % size:
        raise ValueError(f"a batch of {batch} is no multiple of rows={size}")
    answers = ~chat.done & chat.awaits_answer
    budget = jnp.where(answers, jnp.minimum(jax.vmap(remaining)(chat), plan.max_tokens), 0)
    anew = memory.written != chat.counts[:, Count.DELTA]
    # The last id is fed for the answer's first logits, so at most the ids before it count as cached.
    cached = jnp.clip(jnp.where(anew, 0, memory.cached), 0, jnp.maximum(chat.length - 1, 0))
    memory = memory._replace(cached=cached)
    if size == batch and len(plan.slots) == 1:
        return _act_on(plan, params, memory, key, chat, budget)

    needs = chat.length + budget - 1  # the last id that is sampled is not fed
    needs = jnp.maximum(needs, jnp.where(cached < chat.length - 1, plan.chunk, 0))
    order = jnp.argsort(jnp.where(budget > 0, needs, plan.config.capacity + 1))
    block_needs = jnp.max(jnp.where(budget > 0, needs, 0)[order].reshape(-1, size), axis=1)
    axes = _slot_axes(plan.model)
    blank = jnp.zeros((batch, plan.max_tokens), jnp.float32)
    nothing = Action(
        tokens=jnp.full((batch, plan.max_tokens), plan.config.template.pad_id, jnp.int32),
        length=jnp.zeros(batch, jnp.int32),
        logprobs=blank if plan.config.store_logprobs else None,
        finished=jnp.ones(batch, bool),
    )
    memory = memory._replace(
        written=chat.counts[:, Count.DELTA], sampling_logprobs=blank, model_logprobs=blank
    )  # fmt: skip

    def block(slots: int, carry: tuple[Array, Memory, Action]) -> tuple[Array, Memory, Action]:
        index, memory, action = carry
        rows = jax.lax.dynamic_slice(order, (index * size,), (size,))
        at = lambda tree: jax.tree.map(lambda leaf: leaf[rows], tree)  # noqa: E731
        put = lambda old, new: old.at[rows].set(new, unique_indices=True)  # noqa: E731
        some = at(memory._replace(cache=None))._replace(cache=_read_slots(memory.cache, axes, rows, slots))
        new, given = _act_on(plan, params, some, jax.random.fold_in(key, index), at(chat), budget[rows])
        cache = _write_slots(memory.cache, axes, rows, new.cache)
        after = jax.tree.map(put, memory._replace(cache=None), new._replace(cache=None))
        return index + 1, after._replace(cache=cache), jax.tree.map(put, action, given)

    count = jnp.sum(budget > 0, dtype=jnp.int32)
    carry = jnp.int32(0), memory, nothing
    for slots in plan.slots:

        def fits(carry: Any, slots: int = slots) -> Array:
            return (carry[0] * size < count) & (block_needs[carry[0]] <= slots)

        carry = jax.lax.while_loop(fits, partial(block, slots), carry)
    return carry[1:]


def _slot_axes(model: Model) -> Any:
    """Of each array of a cache which axis is that of the slots: the one that grows with them."""
    small, large = (jax.eval_shape(partial(model.init_cache, 1, slots)) for slots in (8, 16))

    def axis(one: Any, other: Any) -> int:
        differ = [index for index, (a, b) in enumerate(zip(one.shape, other.shape)) if a != b]
        if len(differ) != 1:
            raise ValueError(
                f"a cache array of shape {one.shape} for 8 slots and {other.shape} for 16: for rows= and slots= each "
                "array of a cache has one axis of slots"
            )
        return differ[0]

    return jax.tree.map(axis, small, large)


def _read_slots(cache: Cache, axes: Any, rows: Int[Array, "R"], slots: int) -> Cache:
    """The first slots of some rows."""

    def read(leaf: Array, axis: int) -> Array:
        dims = jax.lax.GatherDimensionNumbers(tuple(range(1, leaf.ndim)), (0,), (0,))
        sizes = tuple(1 if i == 0 else slots if i == axis else size for i, size in enumerate(leaf.shape))
        return jax.lax.gather(leaf, rows[:, None], dims, sizes, unique_indices=True, mode="promise_in_bounds")

    return jax.tree.map(read, cache, axes)


def _write_slots(cache: Cache, axes: Any, rows: Int[Array, "R"], new: Cache) -> Cache:
    def write(leaf: Array, axis: int, values: Array) -> Array:
        dims = jax.lax.ScatterDimensionNumbers(tuple(range(1, leaf.ndim)), (0,), (0,))
        return jax.lax.scatter(
            leaf, rows[:, None], values, dims, unique_indices=True, mode=jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
        )

    return jax.tree.map(write, cache, axes, new)


def _act_on(
    plan: _Plan, params: Any, memory: Memory, key: PRNGKeyArray, chat: ChatState, budget: Int[Array, "B"]
) -> tuple[Memory, Action]:
    """`act` on all rows that are given, of which those with a budget answer."""
    cache, cached = _fed(plan, params, memory.cache, memory.cached, chat, budget > 0)
    cache, answer = _answered(plan, params, cache, chat, budget, key)
    stored = answer.sampling_logprobs if plan.stored == "sampling" else answer.model_logprobs
    action = Action(
        tokens=answer.tokens,
        length=answer.length,
        logprobs=stored if plan.config.store_logprobs else None,
        finished=jnp.ones_like(chat.done),
    )
    # The last id of an answer has not been fed: nothing has asked what comes after it.
    cached = jnp.where(answer.length > 0, chat.length + answer.length - 1, cached)
    written = jnp.where(answer.length > 0, chat.length + answer.length, chat.counts[:, Count.DELTA])
    return Memory(cache, cached, written, answer.sampling_logprobs, answer.model_logprobs), action


def _fed(
    plan: _Plan, params: Any, cache: Cache, cached: Int[Array, "B"], chat: ChatState, wanted: Bool[Array, "B"]
) -> tuple[Cache, Int[Array, "B"]]:
    """Feed what the cache lacks of the conversations, up to their last id but one."""
    goal = jnp.where(wanted, chat.length - 1, cached)
    # A chunk ends with the goal, if it can: what is then fed once more is written as it was. So nothing is written
    # beyond the slots a row needs, and rows from which nothing is wanted write their first chunk, whatever they hold.
    latest = jnp.where(wanted, jnp.maximum(goal - plan.chunk, 0), 0)
    offsets = jnp.arange(plan.chunk, dtype=jnp.int32)

    def feed(carry: tuple[Cache, Array]) -> tuple[Cache, Array]:
        cache, cached = carry
        positions = jnp.minimum(cached, latest)[:, None] + offsets[None, :]
        tokens = jnp.take_along_axis(chat.tokens, positions, axis=1, mode="clip")
        _, cache = plan.model.apply(params, _known(plan, tokens), positions, cache)
        return cache, jnp.minimum(cached + plan.chunk, goal)

    return jax.lax.while_loop(lambda carry: jnp.any(carry[1] < goal), feed, (cache, cached))


class _Answer(NamedTuple):
    tokens: Int[Array, "B R"]
    length: Int[Array, "B"]
    sampling_logprobs: Float[Array, "B R"]
    model_logprobs: Float[Array, "B R"]


def _answered(
    plan: _Plan, params: Any, cache: Cache, chat: ChatState, budget: Int[Array, "B"], key: PRNGKeyArray
) -> tuple[Cache, _Answer]:
    """Sample id after id until every row has ended. Rows that have ended feed their last id again, in its place."""
    batch, width = chat.counts.shape[0], plan.max_tokens
    stops = jnp.asarray(plan.stop_ids, jnp.int32)
    position = jnp.where(budget > 0, chat.length - 1, 0)
    last = jnp.take_along_axis(chat.tokens, position[:, None], axis=1)[:, 0]
    blank = jnp.zeros((batch, width), jnp.float32)
    answer = _Answer(
        jnp.full((batch, width), plan.config.template.pad_id, jnp.int32), jnp.zeros(batch, jnp.int32), blank, blank
    )

    def goes_on(carry: Any) -> Array:
        return jnp.any(carry[0])

    def sample(carry: Any) -> Any:
        active, index, token, position, cache, answer = carry
        logits, cache = plan.model.apply(params, _known(plan, token[:, None]), position[:, None], cache)
        logits = real_logits(logits[:, 0], plan.config)
        under_sampling = sampling_logprobs(logits, plan.sampling)
        if plan.sampling.greedy:
            chosen = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        else:
            chosen = sample_ids(jax.random.fold_in(key, index), under_sampling)
        under_model = jax.nn.log_softmax(logits, axis=-1)

        def put(column: Array, values: Array) -> Array:
            kept = jax.lax.dynamic_index_in_dim(column, index, 1, keepdims=False)
            return jax.lax.dynamic_update_index_in_dim(column, jnp.where(active, values, kept), index, 1)

        answer = _Answer(
            tokens=put(answer.tokens, chosen),
            length=answer.length + active.astype(jnp.int32),
            sampling_logprobs=put(answer.sampling_logprobs, logprobs_of(under_sampling, chosen)),
            model_logprobs=put(answer.model_logprobs, logprobs_of(under_model, chosen)),
        )
        ended = jnp.any(chosen[:, None] == stops[None, :], axis=1)
        active = active & ~ended & (answer.length < budget)
        token, position = jnp.where(active, chosen, token), position + active.astype(jnp.int32)
        return active, index + 1, token, position, cache, answer

    carry = budget > 0, jnp.int32(0), last, position, cache, answer
    *_, cache, answer = jax.lax.while_loop(goes_on, sample, carry)
    return cache, answer


def real_logits(logits: Float[Array, "... V"], config: ChatConfig) -> Float[Array, "... V"]:
    """The logits of ids that the tokenizer has, float32; models often have some more, for the sake of alignment."""
    return logits[..., : config.template.vocab_size].astype(jnp.float32)


def _known(plan: _Plan, tokens: Array) -> Array:
    """Ids a model can look up; what lies beyond a row's length may be anything."""
    return jnp.clip(tokens, 0, plan.model.vocab_size - 1)


def _chat(plan: _Plan, states: EnvState | ChatState) -> ChatState:
    chat = states.chat if isinstance(states, EnvState) else states
    if chat.config != plan.config:
        raise ValueError("these states are of another config than this sampler; make it with states.chat.config")
    if chat.counts.ndim != 2:
        raise ValueError("a policy takes a batch of states; begin(env, data, key) gives one")
    return chat
