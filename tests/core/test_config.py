"""The static side: hashing, equality, pickling, and errors raised while tracing."""

import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat import ChatConfig, Kind, Role
from statelesschat.core.types import Header
from tests import toy


def test_equal_configs_built_twice_share_one_trace() -> None:
    one, two = toy.config(capacity=40), toy.config(capacity=40)
    assert one is not two and one == two and hash(one) == hash(two)
    assert one.template is not two.template and one.template == two.template
    chex.clear_trace_counter()
    reset = jax.jit(chex.assert_max_traces(sc.reset, n=1))
    for config in (one, two):
        assert int(reset(sc.init(config), toy.question(config, 30)).length) > 0


@pytest.mark.parametrize(
    "change", [{"capacity": 65}, {"store_logprobs": True}, {"overflow_reward": -1.0}, {"system_prompt": "Be terse."}]
)
def test_a_config_that_differs_is_unequal(change: dict[str, Any]) -> None:
    assert toy.config() != toy.config(**change)
    assert toy.config() != toy.config(toy.pad_is_eos())
    assert toy.config() != "config"


def test_the_report_of_a_template_is_no_part_of_its_identity() -> None:
    told = dataclasses.replace(toy.chatml(), report="what was found")
    assert told == toy.chatml() and hash(told) == hash(toy.chatml())


def test_the_cached_hash_is_never_pickled() -> None:
    config = toy.config(system_prompt="hashes of strings differ between processes")
    hash(config)
    config.template.gap(Kind.START, Kind.USER)
    data = pickle.dumps(config)
    assert b"_hash" not in data and b"_table" not in data
    code = (
        "import pickle, sys; c = pickle.loads(sys.stdin.buffer.read()); d = pickle.loads(pickle.dumps(c));"
        "assert c == d and hash(c) == hash(d); print(hash(c))"
    )
    found = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert int(found.stdout) != hash(config)
    assert pickle.loads(data) == config


def test_configs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        toy.config().capacity = 1  # type: ignore[misc]


def test_a_buffer_has_a_block_of_slack() -> None:
    assert toy.config().buffer == 64 + 12
    assert toy.config(max_response_len=20).buffer == 64 + 20


def started(config: ChatConfig) -> sc.ChatState:
    return sc.reset(sc.init(config), toy.question(config, 30))


class TestErrorsAtTrace:
    """Shapes that can never work are refused while tracing, with the option to change."""

    config = toy.config()

    def test_a_prompt_too_wide(self) -> None:
        with pytest.raises(ValueError, match="25 ids wide, wider than max_prompt_len=24; raise max_prompt_len"):
            sc.reset(sc.init(self.config), toy.question(self.config, 30, width=25))

    def test_a_prompt_of_too_many_messages(self) -> None:
        data = toy.prompt([(Kind.USER, [30])], rows=9)
        with pytest.raises(ValueError, match="9 messages, more than max_messages=8; raise max_messages"):
            sc.reset(sc.init(self.config), data)

    def test_an_answer_too_wide(self) -> None:
        with pytest.raises(ValueError, match="9 ids wide, wider than max_response_len=8; raise max_response_len"):
            sc.step(started(self.config), toy.action([30], width=9))

    def test_a_message_too_wide(self) -> None:
        with pytest.raises(ValueError, match="13 ids wide, wider than max_message_len=12; raise max_message_len"):
            sc.append(started(self.config), toy.message([30], Kind.USER, Kind.ASSISTANT, Kind.USER, width=13))

    def test_a_prefill_too_wide(self) -> None:
        with pytest.raises(ValueError, match="13 ids wide, wider than max_message_len=12"):
            sc.prefill(started(self.config), toy.padded([], 13), toy.int32(1))

    def test_a_batch_without_vmap(self) -> None:
        action = toy.action([30])
        batch = jax.tree.map(lambda x: np.stack([x, x]), action)
        with pytest.raises(
            ValueError, match=r"tokens have shape \(2, 8\); this is for one row, batch it with jax.vmap"
        ):
            sc.step(started(self.config), batch)

    def test_logprobs_missing(self) -> None:
        with pytest.raises(ValueError, match="needs logprobs"):
            sc.step(started(toy.config(store_logprobs=True)), toy.action([30]))

    def test_logprobs_that_nobody_stores(self) -> None:
        with pytest.raises(ValueError, match="stores no logprobs"):
            sc.step(started(self.config), toy.action([30], logprobs=[-1.0]))
        with pytest.raises(ValueError, match="stores no logprobs"):
            sc.sampled_logprobs(started(self.config))

    def test_logprobs_of_another_width(self) -> None:
        action = toy.action([30], logprobs=[-1.0])
        assert action.logprobs is not None
        narrow = dataclasses.replace(action, logprobs=action.logprobs[:4])
        with pytest.raises(ValueError, match=r"logprobs \(4,\) are not shaped as tokens \(8,\)"):
            sc.step(started(toy.config(store_logprobs=True)), narrow)

    def test_info_of_another_structure(self) -> None:
        data = toy.question(self.config, 30, info={"a": np.int32(1)})
        state = sc.init(self.config, data)
        with pytest.raises(ValueError, match="differ in structure; give init"):
            sc.reset(state, dataclasses.replace(data, info={"b": np.int32(1)}))

    def test_info_of_another_shape_or_dtype(self) -> None:
        data = toy.question(self.config, 30, info={"a": np.int32(1)})
        state = sc.init(self.config, data)
        with pytest.raises(ValueError, match=r"info\['a'\]: the data has float32\[2\], the state int32\[\]"):
            sc.reset(state, dataclasses.replace(data, info={"a": np.zeros(2, np.float32)}))


class TestMessagesMadeOnDevice:
    """`glue` and `compose` write what the template writes around contents that are ids."""

    config = toy.config(max_prompt_len=40)
    content = jnp.array([30, 31, 77], jnp.int32)

    def test_glue_is_the_block_the_template_writes(self) -> None:
        made = sc.glue(self.config, self.content[:2], jnp.int32(2), Role.USER, Role.ASSISTANT, Kind.GENERATE)
        want = toy.reply(self.config, 30, 31)
        assert int(made.length) == int(want.length) == 12
        np.testing.assert_array_equal(made.tokens, want.tokens)
        at = [Header.KIND, Header.PIECE_START, Header.PIECE_END, Header.PREVIOUS, Header.NEXT]
        np.testing.assert_array_equal(np.asarray(made.header)[at], np.asarray(want.header)[at])

    def test_glue_of_a_part_of_the_content(self) -> None:
        made = sc.glue(self.config, self.content, jnp.int32(1), Role.USER, Kind.START, Role.USER)
        assert made.tokens.tolist()[: int(made.length)] == [7, 20, 10, 30]

    def test_a_glued_answer_leaves_its_closing_to_the_next_block(self) -> None:
        config = toy.config(toy.long_closing(), max_prompt_len=40)
        state = sc.reset(sc.init(config), toy.prompt([(Kind.USER, [7, 20, 10, 30])], next=Kind.ASSISTANT))
        state = sc.append(state, sc.glue(config, self.content, jnp.int32(1), Role.ASSISTANT, Role.USER, Role.USER))
        state = sc.append(state, sc.glue(config, self.content[:1], jnp.int32(1), Role.USER, Role.ASSISTANT, Role.USER))
        tokens, length = sc.prompt(state)
        want = [7, 20, 10, 30, 8, 10, 7, 22, 10, 30, 10, 8, 10, 7, 20, 10, 30]
        assert tokens.tolist()[: int(length)] == want and int(state.status) == sc.Status.OK

    def test_compose_is_the_prompt_the_template_writes(self) -> None:
        n = jnp.int32
        messages = [
            (Role.USER, self.content, n(2)),
            (Role.ASSISTANT, self.content, n(1)),
            (Role.USER, self.content, n(0)),
        ]
        state = sc.reset(sc.init(self.config), sc.compose(self.config, messages))
        tokens, length = sc.prompt(state)
        want = [7, 20, 10, 30, 31, 8, 10, 7, 22, 10, 30, 8, 10, 7, 20, 10, 8, 10, 7, 22, 10]
        assert tokens.tolist()[: int(length)] == want
        assert bool(state.awaits_answer) and int(state.num_messages) == 3
        assert not bool(sc.loss_mask(state).any())

    def test_few_shot_answers_can_be_branched_at(self) -> None:
        n = jnp.int32
        messages = [
            (Role.USER, self.content, n(1)),
            (Role.ASSISTANT, self.content, n(1)),
            (Role.USER, self.content, n(1)),
        ]
        state = sc.rewind(sc.reset(sc.init(self.config), sc.compose(self.config, messages)), 2)
        state = sc.append(state, toy.reply(self.config, 33, role=Kind.TOOL))
        tokens, length = sc.prompt(state)
        want = [7, 20, 10, 30, 8, 10, 7, 22, 10, 30, 8, 10, 7, 23, 10, 33, 8, 10, 7, 22, 10]
        assert tokens.tolist()[: int(length)] == want

    def test_errors(self) -> None:
        n = jnp.int32(1)
        with pytest.raises(ValueError, match="cannot write ASSISTANT then SYSTEM"):
            sc.glue(self.config, self.content, n, Role.SYSTEM, Role.ASSISTANT, Role.USER)
        with pytest.raises(ValueError, match="wider than max_message_len=12; raise it or narrow"):
            sc.glue(self.config, self.content, n, Role.USER, Role.ASSISTANT, Kind.GENERATE)
        with pytest.raises(ValueError, match="no messages"):
            sc.compose(self.config, [])
        with pytest.raises(ValueError, match="8 messages and the answer they open are more than max_messages=8"):
            sc.compose(self.config, [(Role.USER, self.content, n)] * 8)
        with pytest.raises(ValueError, match="wider than max_prompt_len=40"):
            sc.compose(self.config, [(Role.USER, self.content, n)] * 6)
        trims = toy.config(toy.chatml(transforms=("identity", "strip", "identity", "identity")))
        with pytest.raises(ValueError, match="changes the content of role USER"):
            sc.glue(trims, self.content, n, Role.USER, Kind.START, Role.USER)
