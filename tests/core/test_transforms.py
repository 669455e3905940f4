"""Laws 6 and 7: vmap is the stack of calls, jit is eager, scan is a loop, bit for bit; one structure, one trace."""

import functools
import pickle
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import statelesschat as sc
from statelesschat import ChatData, ChatState, Finish, Kind
from tests import toy

B, TURNS = 16, 4
INFO = {"answer": np.zeros(3, np.float32), "row": np.int32(0)}
CONFIG = toy.config(toy.long_closing(), store_logprobs=True, overflow_reward=-1.0)
SEEDS = st.integers(0, 2**31 - 1)


def stack(rows: list[Any]) -> Any:
    """One batch of rows."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows)


def row(batch: Any, index: int) -> Any:
    """One row of a batch, cut on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], batch)


def equal(a: Any, b: Any) -> None:
    """Raise unless two pytrees are the same to the bit, in structure, dtypes and values."""
    chex.assert_trees_all_equal_shapes_and_dtypes(a, b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def random_ids(rng: np.random.Generator, limit: int) -> list[int]:
    """Ids of a block, stop ids often among them."""
    return rng.choice([2, 8, 8, 30, 31, 32], rng.integers(0, limit + 1)).tolist()


def random_data(rng: np.random.Generator) -> ChatData:
    """A first prompt of one or three messages."""
    info = {"answer": rng.normal(size=3).astype(np.float32), "row": np.int32(rng.integers(1000))}
    history = [(Kind.USER, [30, 31]), (Kind.ASSISTANT, [32, 8], Finish.STOP), (Kind.USER, [33])]
    messages = history if rng.integers(2) else [(Kind.USER, [1, *random_ids(rng, 20)])]
    return toy.prompt(messages, turn_limit=int(rng.choice([0, 1, 2, 4, 4, 4])), info=info)


def random_action(rng: np.random.Generator) -> sc.Action:
    """An answer or a piece of one."""
    logprobs = rng.normal(size=8).astype(np.float32)
    return toy.action(random_ids(rng, 8), bool(rng.integers(4)), logprobs)


def random_message(rng: np.random.Generator) -> sc.Message:
    """A message, mostly one that may follow an answer."""
    previous = Kind.ASSISTANT if rng.integers(8) else Kind.USER
    next = Kind.GENERATE if rng.integers(8) else Kind.USER
    return toy.message(random_ids(rng, 12), Kind.USER, previous, next, span=(2, 3))


TRANSITIONS: dict[str, tuple[Callable[..., ChatState], Callable[[np.random.Generator], tuple[Any, ...]]]] = {
    "reset": (sc.reset, lambda rng: (random_data(rng),)),
    "restart": (sc.restart, lambda rng: (random_data(rng), np.bool_(rng.integers(2)))),
    "step": (sc.step, lambda rng: (random_action(rng),)),
    "append": (sc.append, lambda rng: (random_message(rng),)),
    "prefill": (sc.prefill, lambda rng: (toy.padded(random_ids(rng, 6), 6), np.int32(rng.integers(7)))),
    "rewind": (sc.rewind, lambda rng: (np.int32(rng.integers(6)),)),
    "terminate": (sc.terminate, lambda rng: (np.bool_(rng.integers(2)),)),
}
BATCHED = {name: jax.jit(jax.vmap(function)) for name, (function, _) in TRANSITIONS.items()}
SINGLE = {name: jax.jit(function) for name, (function, _) in TRANSITIONS.items()}
START = jax.jit(jax.vmap(sc.reset, (None, 0)))


def blank() -> ChatState:
    """A blank row whose info has the structure of the data's."""
    return sc.init(CONFIG, toy.question(CONFIG, info=INFO))


def random_states(rng: np.random.Generator) -> ChatState:
    """A batch of conversations that have gone different ways."""
    states = START(blank(), stack([random_data(rng) for _ in range(B)]))
    for name in rng.choice(["step", "append"], rng.integers(0, 5)):
        states = BATCHED[name](states, *stack([TRANSITIONS[name][1](rng) for _ in range(B)]))
    return states


@pytest.mark.parametrize("name", TRANSITIONS)
@settings(max_examples=toy.examples(0.125), deadline=None)
@given(seed=SEEDS)
def test_vmap_is_the_stack_of_calls_and_jit_is_eager(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    function, make = TRANSITIONS[name]
    states, inputs = random_states(rng), [make(rng) for _ in range(B)]
    batch = BATCHED[name](states, *stack(inputs))
    equal(batch, stack([SINGLE[name](row(states, i), *inputs[i]) for i in range(B)]))
    equal(batch, jax.vmap(function)(states, *stack(inputs)))


def turn(states: ChatState, inputs: tuple[sc.Action, sc.Message]) -> tuple[ChatState, jax.Array]:
    """An answer and a reply in every row."""
    states = jax.vmap(sc.append)(jax.vmap(sc.step)(states, inputs[0]), inputs[1])
    return states, states.reward


def random_turns(rng: np.random.Generator) -> tuple[sc.Action, sc.Message]:
    """Inputs of ``TURNS`` turns: leading axes T and B."""
    actions = stack([stack([random_action(rng) for _ in range(B)]) for _ in range(TURNS)])
    return actions, stack([stack([random_message(rng) for _ in range(B)]) for _ in range(TURNS)])


def scan(states: ChatState, inputs: tuple[sc.Action, sc.Message]) -> tuple[ChatState, jax.Array]:
    """Turn after turn."""
    return jax.lax.scan(turn, states, inputs)


TURN, SCAN = jax.jit(turn), jax.jit(scan)


@settings(max_examples=toy.examples(0.125), deadline=None)
@given(seed=SEEDS)
def test_scan_is_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    states, inputs = random_states(rng), random_turns(rng)
    scanned, rewards = SCAN(states, inputs)
    looped = []
    for t in range(TURNS):
        states, reward = TURN(states, row(inputs, t))
        looped.append(reward)
    equal(scanned, states)
    equal(rewards, jnp.stack(looped))


def test_shards_compute_what_one_device_does() -> None:
    assert jax.device_count() >= 8, "run with XLA_FLAGS=--xla_force_host_platform_device_count=8"
    rng = np.random.default_rng(0)
    states, inputs = random_states(rng), random_turns(rng)
    want = SCAN(states, inputs)
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:8])
    rows, turns = PartitionSpec("batch"), PartitionSpec(None, "batch")
    place = functools.partial(jax.tree.map, lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)))
    states = place(states, jax.tree.map(lambda _: rows, states))
    inputs = place(inputs, jax.tree.map(lambda _: turns, inputs))
    sharded = SCAN(states, inputs)
    assert sharded[0].tokens.sharding.is_equivalent_to(NamedSharding(mesh, rows), 2)
    equal(sharded, want)
    mapped = jax.shard_map(scan, mesh=mesh, in_specs=(rows, turns), out_specs=(rows, turns))
    equal(jax.jit(mapped)(states, inputs), want)


def test_one_structure_from_init_reset_and_every_transition() -> None:
    rng = np.random.default_rng(1)
    first = blank()
    chex.assert_trees_all_equal_shapes_and_dtypes(first, SINGLE["reset"](first, random_data(rng)))
    state = SINGLE["reset"](first, random_data(rng))
    for name, (_, make) in TRANSITIONS.items():
        after = SINGLE[name](state, *make(rng))
        chex.assert_trees_all_equal_shapes_and_dtypes(after, first)
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(after)), name
    equal(first.info, {"answer": np.zeros(3, np.float32), "row": np.int32(0)})
    assert sc.init(CONFIG).info is None


def test_info_is_carried_and_begins_anew_with_its_row() -> None:
    rng = np.random.default_rng(2)
    data = stack([random_data(rng) for _ in range(B)])
    states = START(blank(), data)
    equal(states.info, jax.tree.map(jnp.asarray, data.info))
    equal(BATCHED["step"](states, stack([random_action(rng) for _ in range(B)])).info, states.info)
    other, where = stack([random_data(rng) for _ in range(B)]), np.arange(B) % 3 == 0
    info = BATCHED["restart"](states, other, where).info
    np.testing.assert_array_equal(info["row"], np.where(where, other.info["row"], data.info["row"]))


@settings(max_examples=toy.examples(0.125), deadline=None)
@given(seed=SEEDS)
def test_restart_gives_the_row_that_reset_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    states, data = random_states(rng), stack([random_data(rng) for _ in range(B)])
    where = rng.integers(2, size=B).astype(bool)
    after = BATCHED["restart"](states, data, where)
    fresh = START(blank(), data)
    for i in range(B):
        want = row(fresh if where[i] else states, i)
        got = row(after, i)
        equal(sc.prompt(got), sc.prompt(want))
        for name in ("counts", "turn_rewards", "reward", "info"):
            equal(getattr(got, name), getattr(want, name))
        equal(got.table[: int(got.num_messages)], want.table[: int(want.num_messages)])


def test_checkpoints_restore_the_conversation() -> None:
    rng = np.random.default_rng(3)
    states = random_states(rng)
    leaves, structure = jax.tree.flatten(states)
    equal(jax.tree.unflatten(structure, leaves), states)
    host = jax.tree.map(np.asarray, states)
    restored = pickle.loads(pickle.dumps(host))
    assert restored.config == CONFIG
    equal(restored, host)
    inputs = random_turns(rng)
    equal(SCAN(jax.tree.map(jnp.asarray, restored), inputs), SCAN(states, inputs))


def test_branches_share_their_past() -> None:
    state = SINGLE["reset"](blank(), toy.question(CONFIG, 30, info=INFO))
    kept = jax.tree.map(np.array, state)
    left, right = (SINGLE["step"](state, toy.action([i, 8], logprobs=[-1.0, -1.0])) for i in (31, 32))
    equal(state, jax.tree.map(jnp.asarray, kept))
    length = int(state.length)
    equal(np.asarray(left.tokens)[:length], np.asarray(right.tokens)[:length])
    assert int(left.tokens[length]) == 31 and int(right.tokens[length]) == 32
