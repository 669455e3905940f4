"""What an environment is, and the base of all of them: three pure functions of one row, which the caller vmaps."""

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from statelesschat.core import transition
from statelesschat.core.config import ChatConfig, Static
from statelesschat.core.types import Action, ChatData, ChatState, Status

Where = Bool[Array, ""] | np.bool_ | bool


@partial(jax.tree_util.register_dataclass, data_fields=["chat", "inner", "key"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class EnvState:
    """A conversation, what each combinator keeps beside it, and a key of its own for whatever is random."""

    chat: ChatState
    inner: tuple[Any, ...]  # one entry for each combinator, the innermost first
    key: PRNGKeyArray  # a typed key, one for each row

    @property
    def reward(self) -> Array:
        """Of the last transition, float32."""
        return self.chat.reward

    @property
    def terminated(self) -> Array:
        """Whether a rule of the task ended the episode."""
        return self.chat.terminated

    @property
    def truncated(self) -> Array:
        """Whether the turn limit, an overflow or a fault cut it; ``status`` says which."""
        return self.chat.truncated

    @property
    def done(self) -> Array:
        """Terminated or truncated."""
        return self.chat.done

    @property
    def status(self) -> Array:
        """A `Status`, int32."""
        return self.chat.status


class Env(NamedTuple):
    """Three pure functions of one row. An `Env` is a pytree: what its rewards hold in arrays are its leaves.

    So jit a loop with the environment as an *argument*, and those arrays are not baked into the program.
    """

    init: Callable[[ChatData], EnvState]  # a blank state; of the example, one row, the structure of info matters
    reset: Callable[..., EnvState]  # (state, data, where=True): begin anew where True, at the cost of a prompt
    step: Callable[[EnvState, Action], EnvState]  # the answer, and whatever follows it, up to the next prompt


@dataclasses.dataclass(frozen=True, eq=False)
class Bound(Static):
    """A function and its static arguments, equal to another of the same: so equal environments share their programs."""

    function: Callable[..., Any]
    static: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, static arguments first."""
        return self.function(*self.static, *arguments)


def chat_env(config: ChatConfig) -> Env:
    """The base: an answer is written, and nothing answers it. ``init``, ``reset`` and ``step`` of the core.

    Example:
        >>> import jax, statelesschat as sc
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=1)
        >>> codec, env = sc.Codec(tokenizer, config), sc.chat_env(config)
        >>> states = sc.begin(env, codec.encode(["Hi", "2+3?"]), jax.random.key(0))
        >>> states = jax.vmap(env.step)(states, codec.encode_actions(["Hello", "5"]))
        >>> states.truncated.tolist()
        [True, True]
    """
    return Env(Partial(Bound(_init, (config,))), Partial(_jitted(_reset)), Partial(_jitted(_step)))


def combine(
    env: Env,
    combined: Callable[..., tuple[EnvState, Any]],
    *,
    static: tuple[Any, ...] = (),
    arrays: Any = (),
    own: Any = (),
    renew: Callable[[Any, Any], Any] | None = None,
    eager: bool = False,
) -> Env:
    """An environment with something added to its step: the one way in which combinators are made.

    Args:
        env: what it wraps.
        combined: what happens in a step, ``(*static, step, arrays, own, state, action) -> (state, own)``: it calls the
            inner ``step`` with the state and the action. A module's function, or one that is made once.
        static: hashable arguments that ``combined`` is called with first.
        arrays: a pytree that becomes part of the environment.
        own: what the combinator keeps in the state at the beginning of a conversation: a pytree of numpy scalars or
            arrays. Its entry has their structure, shapes and dtypes for ever.
        renew: what it keeps when a conversation begins anew, ``(own, kept) -> own``: from what it keeps at the
            beginning and what the row kept so far. By default the former.
        eager: the step reaches outside, so it is no program of its own, nor are those of combinators around it:
            called outside of jit, it reaches out as a plain function does.
    """
    if not all(hasattr(env, name) for name in Env._fields):
        raise TypeError(f"a {type(env).__name__} is no environment; begin with chat_env(config)")
    own = jax.tree.map(np.asarray, own)
    eager = eager or getattr(env.step, "func", None) is _combined_step
    step = _combined_step if eager else _jitted(_combined_step)
    return Env(
        Partial(_combined_init, env.init, own),
        Partial(_jitted(_combined_reset), env.reset, own, Partial(Bound(_renewed if renew is None else renew))),
        Partial(step, env.step, Partial(Bound(combined, static)), arrays),
    )


def _renewed(own: Any, kept: Any) -> Any:
    return own


@functools.cache
def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one program: outside of jit a step is not hundreds of small ones, inside it is inlined."""
    return jax.jit(function)


def as_partial(function: Callable[..., Any]) -> Partial:
    """A function as a pytree; a `jax.tree_util.Partial` keeps its arrays as leaves."""
    if not callable(function):
        raise TypeError(f"{function!r} is no function; give one, or a jax.tree_util.Partial of one and its arrays")
    return function if isinstance(function, Partial) else Partial(function)


def begin(env: Env, data: ChatData, key: PRNGKeyArray | int) -> EnvState:
    """States at their first prompts for data with a leading axis B, each with a key of its own split from ``key``.

    ``key`` is a key of `jax.random`, or an int seed. The conversations themselves are ``states.chat``.

    Blank buffers are broadcast here, once; inside loops use `restart`.
    """
    _check_batched(data)
    return _begin(env, data, jax.random.key(key) if isinstance(key, int) else key)


@jax.jit
def _begin(env: Env, data: ChatData, key: PRNGKeyArray) -> EnvState:
    blank = env.init(jax.tree.map(lambda leaf: leaf[0], data))
    keys = jax.random.split(key, data.length.shape[0])
    return jax.vmap(lambda key, row: env.reset(dataclasses.replace(blank, key=key), row))(keys, data)


def restart(env: Env, states: EnvState, data: ChatData, where: Bool[Array, "B"]) -> EnvState:
    """Begin anew in the rows where ``where`` is True, with the rows of ``data`` in their places. All have axis B."""
    return jax.vmap(env.reset)(states, data, where)


def answered(chat: ChatState, turn: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether a whole answer was written since the conversation had finished ``turn`` of them, and nothing went wrong.

    An answer that was cut by the capacity is none: its reward is ``overflow_reward``.
    """
    return (chat.turn > turn) & (chat.status == int(Status.OK))


def append(state: EnvState, message: Any, where: Where) -> EnvState:
    """`core.append` inside a step: rewards given so far in this step stay."""
    chat = transition.append(state.chat, message, where)
    return _keep_reward(state, chat)


def prefill(state: EnvState, tokens: Array, length: Array, where: Where) -> EnvState:
    """`core.prefill` inside a step: rewards given so far in this step stay."""
    return _keep_reward(state, transition.prefill(state.chat, tokens, length, where))


def _keep_reward(state: EnvState, chat: ChatState) -> EnvState:
    return dataclasses.replace(state, chat=dataclasses.replace(chat, reward=state.chat.reward + chat.reward))


def _init(config: ChatConfig, example_data: ChatData) -> EnvState:
    return EnvState(transition.init(config, example_data), (), jax.random.key(0))


def _reset(state: EnvState, data: ChatData, where: Where = True) -> EnvState:
    return dataclasses.replace(state, chat=transition.restart(state.chat, data, jnp.asarray(where)))


def _step(state: EnvState, action: Action) -> EnvState:
    return dataclasses.replace(state, chat=transition.step(state.chat, action))


def _combined_init(init: Callable[..., EnvState], own: Any, example_data: ChatData) -> EnvState:
    return _pushed(init(example_data), jax.tree.map(jnp.asarray, own))


def _combined_reset(
    reset: Callable[..., EnvState],
    own: Any,
    renew: Callable[[Any, Any], Any],
    state: EnvState,
    data: ChatData,
    where: Where = True,
) -> EnvState:
    state, kept = _popped(state)
    fresh = jax.tree.map(lambda new, old: jnp.where(where, new, old), renew(own, kept), kept)
    return _pushed(reset(state, data, where), fresh)


def _combined_step(
    step: Callable[..., EnvState], combined: Callable[..., Any], arrays: Any, state: EnvState, action: Any
) -> EnvState:
    if not state.inner:
        raise ValueError("these states are of another environment, with fewer combinators; begin(env, data, key) anew")
    inner, own = _popped(state)
    return _pushed(*combined(step, arrays, own, inner, action))


def _pushed(state: EnvState, own: Any) -> EnvState:
    return dataclasses.replace(state, inner=(*state.inner, own))


def _popped(state: EnvState) -> tuple[EnvState, Any]:
    return dataclasses.replace(state, inner=state.inner[:-1]), state.inner[-1]


def _check_batched(data: ChatData) -> None:
    if np.ndim(data.length) != 1:
        raise ValueError(f"data with a leading batch axis is needed; its length has shape {np.shape(data.length)}")
