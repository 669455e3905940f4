"""A conformance test for any environment made of chat states: this library's, or your own."""

import dataclasses
import io
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from statelesschat.core.types import Action, ChatData, ChatState, Column
from statelesschat.core.views import loss_mask


class Environment(Protocol):
    """What `api_test` tests: three pure functions of one row, which the caller batches with ``jax.vmap``.

    A state is a pytree that is a `ChatState` or holds one as ``.chat``.
    """

    def init(self, example_data: ChatData, /) -> Any:
        """A blank state; of the example, one row, only the structure of its ``info`` matters."""
        ...

    def reset(self, state: Any, data: ChatData, /) -> Any:
        """The state after the first prompt; of ``state`` only the structure and the memory are used."""
        ...

    def step(self, state: Any, action: Action, /) -> Any:
        """The state after an action and whatever the other side says to it."""
        ...


def api_test(env: Environment, data: ChatData, *, key: jax.Array | None = None, num_steps: int = 4) -> None:
    """Raise AssertionError where an environment breaks a law that training relies on: which law, where, what to do.

    ``data`` is a `ChatData` with a leading batch axis of two rows or more; every second row gets a turn limit of 1,
    so that rows end at different times. ``key`` seeds the ``num_steps`` random answers each row is given: finished
    and not, with and without a stop id. Checked are: dtypes and shapes; one structure from init, reset and step;
    finite rewards; ids once written stay; the loss mask is True on sampled ids alone; finished rows absorb, with
    reward 0; jit equals eager, vmap a loop over rows, scan a loop over steps (integers to the bit, floats to
    rounding); states survive flattening and a checkpoint. Raises ValueError where ``data`` is no batch.

    Example:
        >>> import types
        >>> import statelesschat as sc
        >>> from statelesschat.testing import api_test
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> chat = types.SimpleNamespace(init=lambda row: sc.init(config, row), reset=sc.reset, step=sc.step)
        >>> api_test(chat, sc.Codec(tokenizer, config).encode(["Hi", "What is 2+3?"]))
    """
    if np.ndim(data.length) != 1 or np.shape(data.length)[0] < 2 or num_steps < 1:
        raise ValueError(
            f"api_test: needs one step or more (num_steps={num_steps}) and a batch of two rows or more, and the data's "
            f"length has shape {np.shape(data.length)}; encode a list of prompts"
        )
    rng = np.random.default_rng(np.ravel(jax.random.key_data(jax.random.key(0) if key is None else key)).tolist())
    odd = np.arange(np.shape(data.length)[0]) % 2 == 1
    limit = np.asarray(data.turn_limit)
    data = dataclasses.replace(data, turn_limit=jnp.asarray(np.where(odd, np.minimum(limit, 1), limit)))

    blank = env.init(_row(data, 0))
    _check_leaves("init", chat_of(blank), ())
    reset, step = jax.jit(jax.vmap(env.reset, (None, 0))), jax.jit(jax.vmap(env.step))
    start = reset(blank, data)
    _check_state("reset", blank, start, len(odd))
    _check_first_prompts(chat_of(start), data)

    path, actions = [start], []
    for number in range(num_steps):
        where, before = f"step {number}", path[-1]
        action = _random_action(rng, chat_of(before), number)
        after = step(before, action)
        _check_state(where, blank, after, len(odd))
        _check_transition(where, chat_of(before), chat_of(after), action)
        actions.append(action)
        path.append(after)

    finished = dataclasses.replace(data, turn_limit=jnp.zeros_like(data.turn_limit))
    ended = reset(blank, finished)
    _check_first_prompts(chat_of(ended), finished)
    _check_transition("step of rows without turns", chat_of(ended), chat_of(step(ended, actions[0])), actions[0])

    _check_rows_and_jit("reset", env.reset, start, (blank, None), (data, 0))
    _check_rows_and_jit("step 0", env.step, path[1], (start, 0), (actions[0], 0))
    scan = jax.jit(lambda state, xs: jax.lax.scan(lambda s, x: (jax.vmap(env.step)(s, x), None), state, xs)[0])
    remedy = "a step may depend on its arguments alone: no counter, cache or list outside the state"
    _same("scan equals a loop", f"{num_steps} steps", scan(start, _stack(actions)), path[-1], remedy)
    _check_checkpoint(env, blank, start, data, step, actions[0])


def chat_of(state: Any) -> ChatState:
    """The conversation in an environment's state: the state itself, or its ``chat``."""
    chat = state if isinstance(state, ChatState) else getattr(state, "chat", None)
    if isinstance(chat, ChatState):
        return chat
    _fail(
        "structure", "state", f"a {type(state).__name__} neither is a ChatState nor has one as .chat",
        "make the state a pytree (a registered dataclass, or a NamedTuple) with a field chat",
    )  # fmt: skip


def _fail(law: str, where: str, what: str, remedy: str) -> NoReturn:
    raise AssertionError(f"{law}: {where}: {what}; {remedy}")


def _row(tree: Any, index: int) -> Any:
    """One row, cut on the host: a device program for every leaf would cost more than the test."""
    return jax.tree.map(lambda leaf: _device(_host(leaf)[index], leaf), tree)


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: _device(np.stack([_host(x) for x in leaves]), leaves[0]), *trees)


_LOSS_MASK = jax.jit(jax.vmap(loss_mask))


def _loss_mask(chat: ChatState) -> np.ndarray:
    return np.asarray(_LOSS_MASK(chat))


def _random_action(rng: np.random.Generator, chat: ChatState, number: int) -> Action:
    """Answers of several lengths, most of them finished, half of them with a stop id; row 0's always finished."""
    config, rows, width = chat.config, chat.tokens.shape[0], chat.config.max_response_len
    plain = np.setdiff1d(np.arange(config.template.vocab_size), config.template.stop_ids)
    tokens = rng.choice(plain, (rows, width))
    length = rng.integers(0, min(width, 8) + 1, rows)
    finished = rng.random(rows) < 0.75
    length[0], finished[0] = min(width, 3 + number), True
    stops = np.flatnonzero((length > 0) & (np.arange(rows) % 4 < 2))
    if config.template.stop_ids:
        tokens[stops, length[stops] - 1] = rng.choice(config.template.stop_ids, len(stops))
    logprobs = jnp.asarray(-rng.random((rows, width)), jnp.float32) if config.store_logprobs else None
    return Action(jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32), logprobs, jnp.asarray(finished))


def _check_leaves(where: str, chat: ChatState, lead: tuple[int, ...]) -> None:
    config = chat.config
    want = {
        "tokens": ((config.buffer,), jnp.int32),
        "table": ((config.max_messages + 1, len(Column)), jnp.int32),
        "turn_rewards": ((config.max_turns,), jnp.float32),
        "reward": ((), jnp.float32),
        "terminated": ((), jnp.bool_),
        "truncated": ((), jnp.bool_),
        "status": ((), jnp.int32),
    } | ({"logprobs": ((config.buffer,), jnp.float32)} if config.store_logprobs else {})
    for name, (shape, dtype) in want.items():
        value = getattr(chat, name)
        if np.shape(value) != lead + shape or jnp.result_type(value) != dtype:
            what = f"{name} is {jnp.result_type(value)}{list(np.shape(value))}"
            _fail("dtypes and shapes", where, what, f"make it {jnp.dtype(dtype)}{list(lead + shape)}")


def _check_state(where: str, blank: Any, states: Any, rows: int) -> None:
    """The structure `init` gave, the right leaves, finite rewards, no more ids than fit."""
    chat = chat_of(states)
    _check_leaves(where, chat, (rows,))
    remedy = "a loop cannot carry a state that changes its shape; build it with dataclasses.replace and fixed dtypes"
    one = _row(states, 0)
    if jax.tree.structure(one) != jax.tree.structure(blank):
        what = f"the structure is {jax.tree.structure(one)}, and after init {jax.tree.structure(blank)}"
        _fail("one structure", where, what, remedy)
    for (path, leaf), first in zip(jax.tree.leaves_with_path(one), jax.tree.leaves(blank), strict=True):
        if jnp.shape(leaf) != jnp.shape(first) or leaf.dtype != jnp.result_type(first):
            what = f"{jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)}"
            what += f", and after init {jnp.result_type(first)}{list(jnp.shape(first))}"
            _fail("one structure", where, what, remedy)
    for path, leaf in jax.tree.leaves_with_path(states):
        if getattr(leaf, "weak_type", False):
            what, remedy = f"{jax.tree_util.keystr(path)} is weakly typed", "a second trace follows; use jnp.float32(…)"
            _fail("one structure", where, what, remedy)
    remedy = "guard divisions and logarithms by a jnp.where on what goes into them"
    _each(~np.isfinite(chat.reward), "finite reward", where, "the reward is not finite", remedy)
    long = np.asarray(chat.length) > chat.config.capacity
    _each(long, "capacity", where, "more ids than capacity", "write by step, append and prefill only")


def _each(wrong: Any, law: str, where: str, what: str, remedy: str) -> None:
    """Raise if anything is wrong, naming the first row and, in a row of values, the first place."""
    wrong = np.asarray(wrong)
    if wrong.any():
        row, *place = np.argwhere(wrong)[0].tolist()
        _fail(law, f"{where}, row {row}" + (f", position {place[0]}" if place else ""), what, remedy)


def _check_first_prompts(chat: ChatState, data: ChatData) -> None:
    mask = _loss_mask(chat)
    remedy = "nothing of a first prompt was sampled; begin with statelesschat.reset"
    _each(mask, "provenance of the loss mask", "reset", "the mask is True", remedy)
    wrong = (np.asarray(data.turn_limit) <= 0) & ~np.asarray(chat.done)
    remedy = "rows that fill up a batch have a turn limit of 0 and are done at once; keep what reset made of them"
    _each(wrong, "finished rows absorb", "reset", "a row without turns is not done", remedy)


def _check_transition(where: str, before: ChatState, after: ChatState, action: Action) -> None:
    """What a step may do to a conversation, row by row."""
    capacity, position = before.config.capacity, np.arange(before.config.capacity)
    old, new = np.asarray(before.tokens)[:, :capacity], np.asarray(after.tokens)[:, :capacity]
    length, done = np.asarray(before.length), np.asarray(before.done)
    was, mask = _loss_mask(before), _loss_mask(after)
    valid = position < length[:, None]

    law, remedy = "append-only", "tokens are only ever added; a hidden reset belongs in the training loop, as restart"
    _each(np.asarray(after.length) < length, law, where, "the conversation is shorter", remedy)
    _each(valid & (old != new), law, where, "an id has changed", remedy)

    law, remedy = "finished rows absorb", "mask what is added to a conversation or its reward with ~state.done"
    for name in ("length", "turn", "num_messages", "terminated", "truncated", "status"):
        changed = np.asarray(getattr(before, name)) != np.asarray(getattr(after, name))
        _each(done & changed, law, where, f"{name} changed after the end", remedy)
    _each(done & (np.asarray(after.reward) != 0), law, where, "the reward is not 0 after the end", remedy)
    credited = np.asarray(before.turn_rewards) != np.asarray(after.turn_rewards)
    _each(done[:, None] & credited, law, where, "turn_rewards changed after the end", remedy)

    acts = np.asarray(before.awaits_answer) & ~done
    kept = np.where(acts, np.minimum(np.asarray(action.length), capacity - length), 0)[:, None]
    offset = position - length[:, None]
    sampled = (offset >= 0) & (offset < kept)
    law, remedy = "provenance of the loss mask", "write sampled ids with step, all else with append or prefill"
    _each(valid & (mask != was), law, where, "the mask of an earlier id changed", remedy)
    _each(mask & ~valid & ~sampled, law, where, "the mask is True on an id that was not sampled", remedy)
    _each(sampled & ~mask, law, where, "the mask is False on a sampled id", remedy)
    source = np.clip(offset, 0, action.tokens.shape[1] - 1)
    given = np.take_along_axis(np.asarray(action.tokens), source, 1)
    _each(sampled & (new != given), law, where, "a sampled id was edited", "keep the ids of the action as they are")
    if after.logprobs is not None and action.logprobs is not None:
        stored, given = np.asarray(after.logprobs)[:, :capacity], np.asarray(action.logprobs)
        wrong = sampled & (stored != np.take_along_axis(given, source, 1))
        _each(wrong, "logprobs", where, "a logprob is not the action's", "let statelesschat.step store them")


def _check_rows_and_jit(
    where: str, function: Callable[..., Any], want: Any, *arguments: tuple[Any, int | None]
) -> None:
    """``want`` is what jit and vmap of the function gave for the arguments, each with its batch axis."""
    values, axes = zip(*arguments, strict=True)
    remedy = "use jax.numpy on the arguments alone: no branch on a value, no counter or clock, randomness from a key"
    _same("jit equals eager", where, jax.vmap(function, axes)(*values), want, remedy)
    one, rows = jax.jit(function), chat_of(want).tokens.shape[0]
    looped = [one(*(v if axis is None else _row(v, i) for v, axis in arguments)) for i in range(rows)]
    remedy = "write for one row; no row may see another"
    _same("vmap equals a loop over rows", where, _stack(looped), want, remedy)


def _check_checkpoint(
    env: Environment, blank: Any, states: Any, data: ChatData, step: Callable[..., Any], action: Action
) -> None:
    """Leaves through the bytes of a file and back into the structure of a new init, then one more step."""
    law, again = "checkpoint", env.init(_row(data, 0))
    if jax.tree.structure(again) != jax.tree.structure(blank):
        remedy = "static fields are compared when states are restored and jitted: give them equality, build them once"
        _fail(law, "init", "two calls give states of different structure", remedy)
    file, leaves = io.BytesIO(), jax.tree.leaves(states)
    np.savez(file, *[_host(leaf) for leaf in leaves])
    file.seek(0)
    stored = np.load(file).values()
    restored = [_device(jnp.asarray(value), leaf) for value, leaf in zip(stored, leaves, strict=True)]
    restored = jax.tree.unflatten(jax.tree.structure(again), restored)
    remedy = "register every array as a data field of the state's pytree"
    _same(law, "restored state", restored, states, remedy)
    _same(law, "step of a restored state", step(restored, action), step(states, action), remedy)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def _host(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _device(value: Any, like: Any) -> Any:
    """A host value as what it was on device: keys are keys again, all else may stay with numpy."""
    return jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(like)) if _is_key(like) else value


def _same(law: str, where: str, got: Any, want: Any, remedy: str) -> None:
    if jax.tree.structure(got) != jax.tree.structure(want):
        _fail(law, where, "the structures differ", remedy)
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        name, a, b = jax.tree_util.keystr(path), _host(a), _host(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            _fail(law, where, f"{name} is {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}", remedy)
        floats = jnp.issubdtype(a.dtype, jnp.inexact)
        wrong = ~np.isclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) if floats else a != b
        _each(wrong.reshape(len(a), -1).any(1), law, where, f"{name} differs", remedy)
