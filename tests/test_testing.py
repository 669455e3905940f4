"""The conformance test passes what keeps the laws, and catches each law broken once."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer
from jax.experimental.compilation_cache import compilation_cache

import statelesschat as sc
from statelesschat import Action, ChatData, ChatState, Kind
from statelesschat.testing import api_test, chat_of
from tests import toy

CONFIG = toy.config(store_logprobs=True, overflow_reward=-1.0)
ROWS = [toy.question(CONFIG, *[30] * (1 + i % 3), info={"row": np.int32(i)}) for i in range(4)]
DATA: ChatData = jax.tree.map(lambda *x: jnp.stack(x), *ROWS)
REPLY = toy.reply(CONFIG, 50, role=Kind.TOOL)


@pytest.fixture(autouse=True, scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Most environments here differ in one function: let the others' programs be taken from a cache."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], str(tmp_path_factory.mktemp("cache")))
    jax.config.update(names[1], 0.0)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


class Chat:
    """The core's own functions; a test replaces one of them."""

    def init(self, example_data: ChatData) -> Any:
        return sc.init(CONFIG, example_data)

    def reset(self, state: Any, data: ChatData) -> Any:
        return sc.reset(state, data)

    def step(self, state: Any, action: Action) -> Any:
        return sc.step(state, action)


class Replying(Chat):
    """Every finished answer is answered by a tool, with a reward."""

    def step(self, state: ChatState, action: Action) -> ChatState:
        after = sc.step(state, action)
        waits = ~after.awaits_answer & ~after.done
        answered = sc.append(after, REPLY)
        after = jax.tree.map(lambda new, old: jnp.where(waits, new, old), answered, after)
        reward = jnp.where(state.done, 0.0, action.length.astype(jnp.float32) / 3)
        return dataclasses.replace(after, reward=reward)


class Inner(NamedTuple):
    """A state around the conversation, with a key of its own."""

    chat: ChatState
    key: jax.Array


class Wrapped(Chat):
    """The conversation within a larger state."""

    def init(self, example_data: ChatData) -> Inner:
        return Inner(sc.init(CONFIG, example_data), jax.random.key(0))

    def reset(self, state: Inner, data: ChatData) -> Inner:
        return Inner(sc.reset(state.chat, data), jax.random.fold_in(state.key, data.info["row"]))

    def step(self, state: Inner, action: Action) -> Inner:
        key, now = jax.random.split(state.key)
        after = Replying().step(state.chat, action)
        noise = jnp.where(state.chat.done, 0.0, jax.random.uniform(now))
        return Inner(dataclasses.replace(after, reward=after.reward + noise), key)


@pytest.mark.parametrize("env", [Chat(), Replying(), Wrapped()])
def test_environments_that_keep_the_laws_pass(env: Chat) -> None:
    api_test(env, DATA)


def test_the_key_chooses_the_answers() -> None:
    seen = []

    class Watching(Chat):
        def step(self, state: Any, action: Action) -> Any:
            if not isinstance(action.length, Tracer):
                seen.append(action.length)
            return super().step(state, action)

    for seed in (1, 2):
        api_test(Watching(), DATA, key=jax.random.key(seed), num_steps=1)


def broken(method: str) -> Callable[[Callable[..., Any]], type[Chat]]:
    """A `Chat` with one method replaced."""
    return lambda function: type(function.__name__, (Chat,), {method: function})


@broken("step")
def reward_is_an_integer(self: Chat, state: ChatState, action: Action) -> ChatState:
    return dataclasses.replace(sc.step(state, action), reward=action.length)


@broken("reset")
def reward_is_a_vector(self: Chat, state: ChatState, data: ChatData) -> ChatState:
    return dataclasses.replace(sc.reset(state, data), reward=jnp.zeros(1))


@broken("step")
def info_grows(self: Chat, state: ChatState, action: Action) -> ChatState:
    return dataclasses.replace(sc.step(state, action), info={**state.info, "more": state.reward})


@broken("step")
def info_is_another_dtype(self: Chat, state: ChatState, action: Action) -> ChatState:
    return dataclasses.replace(sc.step(state, action), info={"row": state.reward})


@broken("step")
def reward_is_weakly_typed(self: Chat, state: ChatState, action: Action) -> ChatState:
    return dataclasses.replace(sc.step(state, action), reward=jnp.where(state.done, 0.0, 1.0))


@broken("step")
def reward_is_not_a_number(self: Chat, state: ChatState, action: Action) -> ChatState:
    return dataclasses.replace(sc.step(state, action), reward=state.reward / state.reward)


@broken("step")
def a_token_is_edited(self: Chat, state: ChatState, action: Action) -> ChatState:
    after = sc.step(state, action)
    return dataclasses.replace(after, tokens=after.tokens.at[1].set(99))


@broken("step")
def the_end_begins_anew(self: Chat, state: ChatState, action: Action) -> ChatState:
    after = sc.step(state, action)
    return sc.restart(after, ROWS[0], after.done)


@broken("step")
def reward_after_the_end(self: Chat, state: ChatState, action: Action) -> ChatState:
    return dataclasses.replace(sc.step(state, action), reward=jnp.float32(1))


@broken("step")
def credit_after_the_end(self: Chat, state: ChatState, action: Action) -> ChatState:
    return dataclasses.replace(sc.step(state, action), turn_rewards=state.turn_rewards + 1)


@broken("step")
def terminated_after_the_end(self: Chat, state: ChatState, action: Action) -> ChatState:
    return sc.terminate(sc.step(state, action), state.done)


@broken("reset")
def the_turn_limit_is_ignored(self: Chat, state: ChatState, data: ChatData) -> ChatState:
    return sc.reset(state, dataclasses.replace(data, turn_limit=jnp.int32(4)))


@broken("step")
def the_other_side_is_trained(self: Chat, state: ChatState, action: Action) -> ChatState:
    after = sc.step(state, dataclasses.replace(action, finished=jnp.bool_(False)))
    more = Action(jnp.full(8, 50, jnp.int32), jnp.where(action.length > 0, 2, 0), action.logprobs, action.finished)
    return sc.step(after, more)


@broken("reset")
def the_prompt_is_trained(self: Chat, state: ChatState, data: ChatData) -> ChatState:
    action = Action(jnp.full(8, 50, jnp.int32), jnp.int32(2), jnp.zeros(8), jnp.bool_(False))
    return sc.step(sc.reset(state, data), action)


@broken("step")
def a_sampled_id_is_not_trained(self: Chat, state: ChatState, action: Action) -> ChatState:
    fresh = state.counts[9] < 0
    state = jax.tree.map(lambda a, b: jnp.where(fresh, a, b), sc.prefill(state, action.tokens, action.length), state)
    return sc.step(state, dataclasses.replace(action, length=jnp.where(fresh, 0, action.length)))


@broken("step")
def a_sampled_id_is_edited(self: Chat, state: ChatState, action: Action) -> ChatState:
    return sc.step(state, dataclasses.replace(action, tokens=action.tokens.at[0].set(50)))


@broken("step")
def logprobs_are_dropped(self: Chat, state: ChatState, action: Action) -> ChatState:
    return sc.step(state, dataclasses.replace(action, logprobs=jnp.zeros(8)))


class jit_sees_another_value(Chat):
    calls = 0

    def step(self, state: ChatState, action: Action) -> ChatState:
        self.calls += 1
        return dataclasses.replace(sc.step(state, action), reward=jnp.where(state.done, 0.0, jnp.float32(self.calls)))


class scan_sees_another_value(Replying):
    """Counts traces; the one inside the scan comes last, after the comparisons of jit, eager and rows."""

    calls = 0

    def step(self, state: ChatState, action: Action) -> ChatState:
        self.calls += 1
        reward = jnp.where(state.done, 0.0, jnp.float32(self.calls > 3))
        return dataclasses.replace(super().step(state, action), reward=reward)


@jax.custom_batching.custom_vmap
def alone_or_in_company(x: jax.Array) -> jax.Array:
    return x


@alone_or_in_company.def_vmap
def _(size: int, batched: Any, x: jax.Array) -> tuple[jax.Array, bool]:
    return x + x.sum(), True


@broken("step")
def rows_see_each_other(self: Chat, state: ChatState, action: Action) -> ChatState:
    seen = alone_or_in_company(action.length.astype(jnp.float32))
    return dataclasses.replace(sc.step(state, action), reward=jnp.where(state.done, 0.0, seen))


@partial(jax.tree_util.register_dataclass, data_fields=["chat"], meta_fields=["rule"])
@dataclasses.dataclass(frozen=True)
class Ruled:
    """A state with a static field that is never equal to another."""

    chat: ChatState
    rule: Callable[[], None]


class the_structure_is_never_the_same(Chat):
    def init(self, example_data: ChatData) -> Ruled:
        return Ruled(sc.init(CONFIG, example_data), lambda: None)

    def reset(self, state: Ruled, data: ChatData) -> Ruled:
        return dataclasses.replace(state, chat=sc.reset(state.chat, data))

    def step(self, state: Ruled, action: Action) -> Ruled:
        return dataclasses.replace(state, chat=sc.step(state.chat, action))


@broken("init")
def no_chat(self: Chat, example_data: ChatData) -> dict[str, ChatState]:
    return {"conversation": sc.init(CONFIG, example_data)}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (reward_is_an_integer, r"dtypes and shapes: step 0: reward is int32\[4\]; make it float32\[4\]"),
        (reward_is_a_vector, r"dtypes and shapes: reset: reward is float32\[4, 1\]"),
        (info_grows, "one structure: step 0: the structure is"),
        (info_is_another_dtype, r"one structure: step 0: .info\['row'\] is float32\[\], and after init int32"),
        (reward_is_weakly_typed, "one structure: step 0: .reward is weakly typed; a second trace follows"),
        (reward_is_not_a_number, "finite reward: step 0, row 0: the reward is not finite; guard"),
        (a_token_is_edited, "append-only: step 0, row 0, position 1: an id has changed"),
        (the_end_begins_anew, "append-only: step .*, row .: the conversation is shorter; .* as restart"),
        (reward_after_the_end, "finished rows absorb: .*: the reward is not 0 after the end; mask"),
        (credit_after_the_end, "finished rows absorb: .*: turn_rewards changed after the end"),
        (terminated_after_the_end, "finished rows absorb: .*: terminated changed after the end"),
        (the_turn_limit_is_ignored, "finished rows absorb: .*a row without turns is not done"),
        (the_other_side_is_trained, "provenance of the loss mask: .* True on an id that was not sampled"),
        (the_prompt_is_trained, "provenance of the loss mask: reset, row 0, position 9: the mask is True"),
        (a_sampled_id_is_not_trained, "provenance of the loss mask: step 0, row 0, .* False on a sampled id"),
        (a_sampled_id_is_edited, "provenance of the loss mask: step 0, .* a sampled id was edited"),
        (logprobs_are_dropped, "logprobs: step 0, row 0, position 9: a logprob is not the action's"),
        (jit_sees_another_value, "jit equals eager: step 0, row 0: .reward differs; use jax.numpy"),
        (scan_sees_another_value, "scan equals a loop: 4 steps, row 0: .reward differs; a step may depend"),
        (rows_see_each_other, "vmap equals a loop over rows: step 0, row 0: .reward differs; write for one row"),
        (the_structure_is_never_the_same, "checkpoint: init: two calls give states of different structure"),
        (no_chat, "structure: state: a dict neither is a ChatState nor has one as .chat"),
    ],
)
def test_a_broken_law_is_named(env: type[Chat], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        api_test(env(), DATA)


def test_data_that_is_no_batch() -> None:
    with pytest.raises(ValueError, match=r"batch of two rows or more, and the data's length has shape \(\)"):
        api_test(Chat(), ROWS[0])
    with pytest.raises(ValueError, match="num_steps=0"):
        api_test(Chat(), DATA, num_steps=0)


def test_chat_of() -> None:
    state = sc.init(CONFIG)
    assert chat_of(state) is state and chat_of(Inner(state, jax.random.key(0))) is state
