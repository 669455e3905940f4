"""Law 8: a transition costs what it writes. Read off the jaxpr and the compiled program, not off a clock."""

import collections
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import statelesschat as sc
from statelesschat import ChatState
from tests import toy

B, TURNS = 16, 3
WRITES = {"dynamic_update_slice", "scatter", "while", "scan", "jit", "pjit", "closed_call", "cond"}
HLO_WRITES = {"parameter", "get-tuple-element", "bitcast", "dynamic-update-slice", "scatter", "fusion", "while"}


def config(logprobs: bool) -> sc.ChatConfig:
    """Widths that no other dimension has."""
    return toy.config(
        capacity=4096, max_message_len=33, max_response_len=64, max_prompt_len=48, max_messages=20, max_turns=9,
        store_logprobs=logprobs,
    )  # fmt: skip


def inputs(config: sc.ChatConfig, batch: int) -> tuple[ChatState, Any]:
    """States after the first prompt, and the inputs of every turn: answers, replies and prompts to restart with."""
    logprobs = [-1.0] * 64 if config.store_logprobs else None
    data = toy.question(config, 30, 31, width=48)
    turn = toy.action([33] * 64, logprobs=logprobs, width=64), toy.reply(config, 40, width=33), data, np.True_
    states = jax.vmap(sc.reset, (None, 0))(sc.init(config), spread(data, (batch,)))
    return states, spread(turn, (TURNS, batch))


def spread(tree: Any, shape: tuple[int, ...]) -> Any:
    """The same values with leading axes."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *jnp.shape(x))), tree)


def turns(states: ChatState, inputs: Any, restarts: bool = False) -> tuple[ChatState, jax.Array]:
    """step and append, scanned; and in the same loop `restart` of the rows that are done."""

    def turn(states: ChatState, inputs: Any) -> tuple[ChatState, jax.Array]:
        action, reply, data, _ = inputs
        states = jax.vmap(sc.append)(jax.vmap(sc.step)(states, action), reply)
        reward = states.reward
        if restarts:
            states = jax.vmap(sc.restart)(states, data, states.done)
        return states, reward

    return jax.lax.scan(turn, states, inputs)


def with_restart(states: ChatState, inputs: Any) -> tuple[ChatState, jax.Array]:
    """`turns` with restarts."""
    return turns(states, inputs, restarts=True)


def with_prefill(states: ChatState, inputs: Any) -> tuple[ChatState, jax.Array]:
    """Every transition there is, scanned."""

    def turn(states: ChatState, inputs: Any) -> tuple[ChatState, jax.Array]:
        action, reply, data, where = inputs
        states = jax.vmap(sc.prefill)(states, reply.tokens, reply.length)
        states = jax.vmap(sc.append)(jax.vmap(sc.step)(states, action), reply)
        states = jax.vmap(sc.terminate)(states, where)
        states = jax.vmap(sc.restart)(states, data, where)
        return jax.vmap(sc.rewind, (0, None))(states, 1), states.reward

    return jax.lax.scan(turn, states, inputs)


def selecting(states: ChatState, inputs: Any) -> tuple[ChatState, jax.Array]:
    """What must not be done: whole states selected between."""

    def turn(states: ChatState, inputs: Any) -> tuple[ChatState, jax.Array]:
        after = jax.vmap(sc.step)(states, inputs[0])
        keep = lambda new, old: jax.vmap(jnp.where)(states.done, new, old)  # noqa: E731
        return jax.tree.map(keep, after, states), after.reward

    return jax.lax.scan(turn, states, inputs)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner jaxprs too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def over_the_buffer(function: Any, config: sc.ChatConfig, arguments: Any) -> collections.Counter[str]:
    """Primitives that make an array as long as the buffer or the capacity."""
    lengths = {config.buffer, config.capacity}
    found: collections.Counter[str] = collections.Counter()
    for equation in equations(jax.make_jaxpr(function)(*arguments).jaxpr):
        if any(lengths & set(getattr(v.aval, "shape", ())) for v in equation.outvars):
            found[equation.primitive.name] += 1
    return found


def hlo_over_the_buffer(function: Any, config: sc.ChatConfig, arguments: Any, batch: int) -> collections.Counter[str]:
    """HLO operations of the compiled, donated program that make an array of the buffers' shape."""
    return in_compiled(jax.jit(function, donate_argnums=0).lower(*arguments).compile(), config, batch)


def in_compiled(program: Any, config: sc.ChatConfig, batch: int) -> collections.Counter[str]:
    """The same of a program that is compiled already."""
    text = program.as_text() or ""
    shape = rf"= [a-z0-9]+\[(?:{batch},)?(?:{config.buffer}|{config.capacity})\]\S* ([a-z\-]+)\("
    found = collections.Counter(re.findall(shape, text))
    assert found["parameter"], "the program's text was not understood"
    return found


@pytest.mark.parametrize("logprobs", [False, True], ids=["plain", "logprobs"])
@pytest.mark.parametrize("function", [turns, with_restart, with_prefill])
def test_nothing_in_the_jaxpr_is_as_long_as_the_buffer(function: Any, logprobs: bool) -> None:
    where = config(logprobs)
    found = over_the_buffer(function, where, inputs(where, B))
    assert not set(found) - WRITES, found


@pytest.mark.parametrize(
    ("function", "logprobs", "batch"),
    [(turns, False, B), (turns, True, B), (turns, False, 1), (with_restart, True, B), (with_restart, True, 1),
     (with_prefill, True, B)],
)  # fmt: skip
def test_no_copy_of_the_buffer_in_the_compiled_loop(function: Any, logprobs: bool, batch: int) -> None:
    where = config(logprobs)
    found = hlo_over_the_buffer(function, where, inputs(where, batch), batch)
    assert not set(found) - HLO_WRITES, found


def test_a_selection_between_states_would_be_found() -> None:
    where = config(False)
    assert over_the_buffer(selecting, where, inputs(where, B))["select_n"]
    found = hlo_over_the_buffer(selecting, where, inputs(where, B), B)
    assert set(found) - HLO_WRITES, found


def test_one_write_for_each_transition() -> None:
    where = config(True)
    states, (action, reply, data, done) = inputs(where, B)
    for function, arguments, writes in (
        (sc.step, (action,), 2),
        (sc.append, (reply,), 1),
        (sc.restart, (data, done), 1),
    ):
        row = jax.tree.map(lambda x: x[0, 0], arguments)
        found = over_the_buffer(function, where, (jax.tree.map(lambda x: x[0], states), *row))
        found.pop("jit", None)
        assert found == {"dynamic_update_slice": writes}, function


def test_few_leaves() -> None:
    assert len(jax.tree.leaves(sc.init(config(False)))) == 5
    assert len(jax.tree.leaves(sc.init(config(True)))) == 6
