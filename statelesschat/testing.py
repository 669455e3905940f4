"""A conformance test for any environment made of chat states: ours, or yours."""

import functools
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from statelesschat.core.transition import append
from statelesschat.core.types import Action, ChatData, ChatState, Column, Header, Kind, Message
from statelesschat.core.views import loss_mask, prompt, sampled_logprobs

_FIRST_CONTENT = 30


class Environment(Protocol):
    """What `api_test` tests: three pure functions of one row.

    A state is a pytree that is a `ChatState` or holds one as ``.chat``. The caller batches the functions with
    ``jax.vmap``.
    """

    def init(self, example_data: ChatData) -> Any:
        """A blank state; of the example, one row, only ``info`` is looked at."""
        ...

    def reset(self, state: Any, data: ChatData) -> Any:
        """The state after the first prompt."""
        ...

    def step(self, state: Any, action: Action) -> Any:
        """The state after an action, and after whatever the other side says to it."""
        ...


def api_test(env: Environment, data: ChatData, *, key: jax.Array | None = None, num_steps: int = 4) -> None:
    """Raise AssertionError where an environment breaks a law that training relies on, saying which, where and why.

    ``data`` is a `ChatData` with a leading batch axis, of two rows or more; ``key`` seeds the random answers that are
    given, ``num_steps`` of them to each row, finished and unfinished ones, with and without a stop id, the last of
    them to rows that were ended on purpose. Checked are: dtypes and shapes; the same structure from init, reset and
    step; finished rows absorb, with reward 0; jit equals eager, vmap equals a loop over rows, scan equals a loop over
    steps, bit for bit; ids that were written stay; the loss mask is True on sampled ids alone; states survive
    flattening and a checkpoint.

    Example:
        >>> import statelesschat as sc
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> class Chat:
        ...     def init(self, example_data):
        ...         return sc.init(config, example_data)
        ...     reset = staticmethod(sc.reset)
        ...     step = staticmethod(sc.step)
        >>> sc.testing.api_test(Chat(), sc.Codec(tokenizer, config).encode(["Hi", "What is 2+3?"]))
    """
    rows = _check_data(data)
    key = jax.random.key(0) if key is None else key
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    blank = env.init(_row(data, 0))
    config = chat_of(blank).config
    _check_chat("init", chat_of(blank), None)

    reset = jax.jit(jax.vmap(env.reset, (None, 0)))
    step = jax.jit(jax.vmap(env.step))
    states = reset(blank, data)
    _check_structure("reset", blank, _row(states, 0))
    _check_chat("reset", chat_of(states), rows)
    _check_prompts(chat_of(states), data)
    _check_transforms("reset", env.reset, (blank, data), (None, 0), states)

    start, actions, path = states, [], [states]
    for number in range(num_steps):
        action = _random_actions(rng, chat_of(states), number)
        after = step(states, action)
        _check_structure("step", blank, _row(after, 0))
        _check_chat("step", chat_of(after), rows)
        _check_written(number, chat_of(states), chat_of(after), action)
        if number in (0, num_steps - 1):
            _check_transforms(f"step {number}", env.step, (states, action), (0, 0), after)
        actions.append(action)
        path.append(after)
        states = after
    _check_absorbing(env, config, step, states, rng)
    _check_scan(env, start, actions, path)
    _check_round_trips(states, step, _random_actions(rng, chat_of(states), 0))


def chat_of(state: Any) -> ChatState:
    """The conversation in an environment's state: the state itself, or its ``chat``."""
    chat = state if isinstance(state, ChatState) else getattr(state, "chat", None)
    if not isinstance(chat, ChatState):
        raise AssertionError(
            f"structure: a state is a ChatState or holds one as .chat, and this is a {type(state).__name__}; "
            "return a dataclass or NamedTuple that is a pytree and has the field chat"
        )
    return chat


def _fail(law: str, where: str, what: str, remedy: str) -> None:
    raise AssertionError(f"{law}: {where}: {what}; {remedy}")


def _row(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _check_data(data: ChatData) -> int:
    if np.ndim(data.length) != 1 or np.shape(data.length)[0] < 2:
        raise ValueError(
            f"api_test: data needs a leading batch axis of two rows or more, and its length has shape "
            f"{np.shape(data.length)}; encode a list of prompts"
        )
    return np.shape(data.length)[0]


def _signature(tree: Any) -> dict[str, tuple[tuple[int, ...], str, bool]]:
    paths = jax.tree.leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path): (np.shape(leaf), str(jnp.result_type(leaf)), bool(getattr(leaf, "weak_type", False)))
        for path, leaf in paths
    }


def _check_structure(name: str, blank: Any, state: Any) -> None:
    remedy = "a scan cannot carry a state that changes; build it with dataclasses.replace and fixed dtypes"
    want, got = _signature(blank), _signature(state)
    for path in want.keys() | got.keys():
        if want.get(path) != got.get(path):
            what = f"leaf {path} is {got.get(path)} and after init {want.get(path)} (shape, dtype, weakly typed)"
            _fail("same structure", name, what, remedy)
    if jax.tree.structure(blank) != jax.tree.structure(state):
        what = f"structure {jax.tree.structure(state)} and after init {jax.tree.structure(blank)}"
        _fail("same structure", name, what, remedy)


def _check_chat(name: str, chat: ChatState, rows: int | None) -> None:
    """Shapes and dtypes of the conversation's own leaves, and values that hold at all times."""
    config, lead = chat.config, () if rows is None else (rows,)
    want = {
        "tokens": ((config.buffer,), jnp.int32),
        "logprobs": ((config.buffer,), jnp.float32),
        "table": ((config.max_messages + 1, len(Column)), jnp.int32),
        "turn_rewards": ((config.max_turns,), jnp.float32),
        "reward": ((), jnp.float32),
        "terminated": ((), jnp.bool_),
        "truncated": ((), jnp.bool_),
        "status": ((), jnp.int32),
    }
    for field, (shape, dtype) in want.items():
        value = getattr(chat, field)
        if field == "logprobs" and (value is None) == (not config.store_logprobs):
            if value is None:
                continue
        elif value is None or field == "logprobs":
            _fail("dtypes and shapes", name, f"{field} is {value}", "keep what statelesschat.init made")
        if np.shape(value) != lead + shape or jnp.result_type(value) != dtype:
            what = f"{field} is {jnp.result_type(value)}{list(np.shape(value))}, not {jnp.dtype(dtype)}{list(lead + shape)}"
            _fail("dtypes and shapes", name, what, "give it this dtype and one value for each row")
    reward = np.asarray(chat.reward)
    for row in np.flatnonzero(~np.isfinite(reward)):
        what = f"row {row}: the reward is {reward.ravel()[row]}"
        _fail("finite reward", name, what, "guard divisions and logarithms with jnp.where on their input")
    over = np.asarray(chat.length) > config.capacity
    for row in np.flatnonzero(over):
        what = f"row {row}: {np.ravel(chat.length)[row]} ids in a capacity of {config.capacity}"
        _fail("capacity", name, what, "write with step, append and prefill only")


def _check_prompts(chat: ChatState, data: ChatData) -> None:
    mask = np.asarray(jax.vmap(loss_mask)(chat))
    for row in np.flatnonzero(mask.any(1)):
        what = f"row {row}: the loss mask is True at {np.flatnonzero(mask[row])[0]} before anything was sampled"
        _fail("provenance", "reset", what, "what a prompt holds is never sampled; begin with statelesschat.reset")
    done = np.asarray(chat.done)
    for row in np.flatnonzero((np.asarray(data.turn_limit) <= 0) & ~done):
        what = f"row {row}: its turn limit is 0 and it is not done"
        _fail("padding rows", "reset", what, "rows that fill up a batch are done at once; keep what reset made")


def _random_actions(rng: np.random.Generator, chat: ChatState, number: int) -> Action:
    """Answers of all lengths from plain ids, mostly finished, half of them with a stop id."""
    config, rows, width = chat.config, chat.tokens.shape[0], chat.config.max_response_len
    low = min(_FIRST_CONTENT, config.template.vocab_size - 1)
    tokens = rng.integers(low, config.template.vocab_size, (rows, width)).astype(np.int32)
    plain = np.isin(tokens, config.template.stop_ids)
    tokens = np.where(plain, low, tokens).astype(np.int32)
    length = rng.integers(0, min(width, 8) + 1, rows).astype(np.int32)
    length[0] = min(width, 4 + number)
    if config.template.stop_ids:
        for row in range(0, rows, 2):
            tokens[row, max(length[row] - 1, 0)] = config.template.stop_ids[0]
    finished = rng.random(rows) < 0.75
    finished[0] = True
    logprobs = -rng.random((rows, width)).astype(np.float32) if config.store_logprobs else None
    arrays = jax.tree.map(jnp.asarray, (tokens, length, logprobs, finished))
    return Action(*arrays)


def _check_written(number: int, before: ChatState, after: ChatState, action: Action) -> None:
    """Append-only, provenance, rewards of finished rows, and that a row once done stays done."""
    old, length = np.asarray(before.tokens), np.asarray(before.length)
    new, end = np.asarray(after.tokens), np.asarray(after.length)
    mask_before, mask = np.asarray(jax.vmap(loss_mask)(before)), np.asarray(jax.vmap(loss_mask)(after))
    logprobs = None if after.logprobs is None else np.asarray(jax.vmap(sampled_logprobs)(after))
    done, acts = np.asarray(before.done), np.asarray(before.awaits_answer & ~before.done)
    for row in range(len(length)):
        where, n = f"step {number}, row {row}", int(length[row])
        if end[row] < n or (old[row, :n] != new[row, :n]).any():
            first = int(end[row]) if end[row] < n else int(np.flatnonzero(old[row, :n] != new[row, :n])[0])
            _fail("append-only", where, f"id {first} of {n} changed or is gone", "append; never edit what was written")
        if done[row]:
            if end[row] != n or not bool(np.asarray(after.done)[row]) or float(np.asarray(after.reward)[row]) != 0:
                what = f"it was done; length {n} became {end[row]}, reward {np.asarray(after.reward)[row]}"
                _fail("finished rows absorb", where, what, "mask what you add with ~state.done")
            continue
        kept = min(max(int(action.length[row]), 0), before.config.capacity - n) if acts[row] else 0
        want = np.zeros_like(mask[row])
        want[n : n + kept] = True
        want[:n] = mask_before[row, :n]
        if (want != mask[row]).any():
            first = int(np.flatnonzero(want != mask[row])[0])
            what = f"the loss mask at {first} is {mask[row, first]}; {kept} sampled ids begin at {n}"
            _fail("provenance", where, what, "write sampled ids with step, and all else with append or prefill")
        sampled = np.asarray(action.tokens)[row, :kept]
        if (new[row, n : n + kept] != sampled).any():
            first = int(np.flatnonzero(new[row, n : n + kept] != sampled)[0])
            what = f"sampled id {first} is {new[row, n + first]}, and was {sampled[first]}"
            _fail("provenance", where, what, "keep sampled ids as they are: no decoding, no editing")
        if logprobs is not None and action.logprobs is not None:
            if (logprobs[row, n : n + kept] != np.asarray(action.logprobs)[row, :kept]).any():
                _fail("logprobs", where, "they are not those of the action", "let step store them")


def _same(law: str, where: str, got: Any, want: Any, remedy: str) -> None:
    """Raise unless two batches hold the same bits in what is specified of them."""
    if jax.tree.structure(got) != jax.tree.structure(want):
        _fail(law, where, "the structures differ", remedy)
    pairs = zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True)
    for (path, a), b in pairs:
        a, b = _bits(a), _bits(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            _fail(law, where, f"leaf {jax.tree_util.keystr(path)}: {a.dtype}{a.shape} and {b.dtype}{b.shape}", remedy)
        if a.tobytes() != b.tobytes():
            differs = np.argwhere(~((a == b) | ((a != a) & (b != b))))
            row = f"row {differs[0][0]}" if len(differs) and differs.shape[1] else "the value"
            _fail(law, where, f"leaf {jax.tree_util.keystr(path)}: {row} differs", remedy)


def _bits(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _check_transforms(
    name: str, function: Callable[..., Any], arguments: tuple[Any, ...], axes: tuple[int | None, ...], want: Any
) -> None:
    eager = jax.vmap(function, axes)(*arguments)
    remedy = "use jax.numpy only, no Python branch on values, no hidden state, and randomness from a key in the state"
    _same("jit equals eager", name, eager, want, remedy)
    one = jax.jit(function)
    rows = chat_of(want).tokens.shape[0]
    picked = [tuple(_row(a, i) if axis == 0 else a for a, axis in zip(arguments, axes)) for i in range(rows)]
    looped = [one(*row) for row in picked]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *looped)
    _same("vmap equals a loop over rows", name, stacked, want, "let no row see another: write for one row")


def _check_absorbing(env: Environment, config: Any, step: Callable[..., Any], states: Any, rng: Any) -> None:
    """End every row, then step and append: nothing may change but the reward, which is 0."""
    from statelesschat.core.transition import terminate

    ended = _with_chat(states, jax.vmap(terminate)(chat_of(states)))
    after = step(ended, _random_actions(rng, chat_of(ended), 0))
    _absorbed("step", chat_of(ended), chat_of(after))
    del env, config, append, Header, Kind, Message


def _absorbed(name: str, before: ChatState, after: ChatState) -> None:
    remedy = "a row that is terminated or truncated stays as it is; mask what you add with ~state.done"
    seen = [(*jax.vmap(prompt)(c), jax.vmap(loss_mask)(c), c.terminated, c.truncated, c.status, c.turn) for c in (before, after)]
    names = ("tokens", "length", "loss mask", "terminated", "truncated", "status", "turn")
    for field, a, b in zip(names, *seen):
        for row in np.flatnonzero((np.asarray(a) != np.asarray(b)).reshape(len(a), -1).any(1)):
            _fail("finished rows absorb", name, f"row {row}: {field} changed after the end", remedy)
    for field in ("reward", "turn_rewards"):
        old = np.zeros_like(after.reward) if field == "reward" else np.asarray(before.turn_rewards)
        new = np.asarray(getattr(after, field))
        for row in np.flatnonzero((old != new).reshape(len(old), -1).any(1)):
            _fail("finished rows absorb", name, f"row {row}: {field} is {new[row]} after the end", remedy)
