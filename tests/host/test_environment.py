"""Environments that reach the host: sessions and verdicts from end to end, and rows that wait."""

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import statelesschat as sc
from statelesschat import Status
from statelesschat.host import Answer, Outcome, Registry, Reply, Verdict, show_reply, with_host, with_session
from statelesschat.host import check as check_host
from statelesschat.host.desk import Desk, desks
from statelesschat.host.fitting import cut, fit_messages
from statelesschat.host.registry import Called
from statelesschat.host.visit import Visit, visits_of
from statelesschat.testing import api_test
from tests.host.fake import World

B, WIDTH = 4, 32
TOKENIZER = sc.load_tokenizer(None)
CONFIG = sc.make_config(
    TOKENIZER, capacity=768, max_messages=16, max_message_len=96, max_response_len=WIDTH, max_turns=4
)
CODEC = sc.Codec(TOKENIZER, CONFIG)
STEP = jax.jit(lambda env, states, actions: jax.vmap(env.step)(states, actions))
ROLLOUT = jax.jit(lambda env, states, plan: sc.rollout(env, POLICY, plan, states, jax.random.key(0), 3))
IDLE = ("", "", "", "")
Steps = Callable[[Any, Any, Any], Any]


def turn(env: Any, states: Any, actions: Any) -> Any:
    """One step, outside of jit."""
    return jax.vmap(env.step)(states, actions)


EVERY_WAY = pytest.mark.parametrize("step", [turn, STEP], ids=["eager", "jit"])


def nth(params: Any, count: Any, key: Any, states: Any) -> Any:
    return count + 1, jax.tree.map(lambda leaf: leaf[count], params)


POLICY: Any = types.SimpleNamespace(init=lambda params, states: jnp.int32(0), act=nth)


def data(*, turn_limit: int = 4) -> Any:
    return CODEC.encode(["one", "two", "three", "four"], turn_limit=[turn_limit] * B)


def says(*commands: str) -> Any:
    return CODEC.encode_actions(list(commands))


def start(env: Any, **options: Any) -> Any:
    return sc.begin(env, data(**options), jax.random.key(7))


def history(states: Any, row: int = 0) -> list[str]:
    return [message["content"] for message in CODEC.decode_history(states.chat)[row]]


@contextlib.contextmanager
def hosted(world: World | None = None, *, inside: Any = None, **options: Any) -> Iterator[tuple[Any, Registry, World]]:
    world = World() if world is None else world
    own = {name: options.pop(name) for name in ("size", "seed", "spares", "timeout_s") if name in options}
    with Registry(world.make, backoff_s=0.001, **own) as registry:
        base = sc.chat_env(CONFIG) if inside is None else inside
        yield with_session(base, CODEC, registry, **options), registry, world


def without_handles(states: Any) -> list[np.ndarray]:
    """All leaves as numpy; of tickets all but the handle, which is of the desk."""
    key = jax.random.key_data(states.key)
    tickets = [np.asarray(visit.ticket)[..., 1:] for visit in visits_of(states)]
    return [*(np.asarray(leaf) for leaf in jax.tree.leaves(states.chat)), *tickets, np.asarray(key)]


PLAN = [
    ("echo a", "count", "echo c", "binary"),
    ("count", "reward 0.5", "exit", "late"),
    ("count", "refuse", "echo x", "die"),
]


def test_outside_of_jit_under_jit_and_in_a_scan_the_states_are_the_same_bit_for_bit() -> None:
    plan = jax.tree.map(lambda *x: jnp.stack(x), *[says(*commands) for commands in PLAN])
    results = []
    for way in (turn, STEP, None):
        with hosted() as (env, _, world):
            states = start(env)
            if way is None:
                states, turns = ROLLOUT(env, states, plan)
                assert turns.reward.tolist() == [[0, 0, 0, 0], [0, 0.5, 2, 0], [0, 0, 0, 0]]
            else:
                for commands in PLAN:
                    states = way(env, states, says(*commands))
            jax.block_until_ready(states)
            results.append((states, sorted(world.ran)))
    first, ran = results[0]
    for states, others in results[1:]:
        assert [command for *_, command in others] == [command for *_, command in ran]
        for got, want in zip(without_handles(states), without_handles(first), strict=True):
            np.testing.assert_array_equal(got, want)
    assert history(first) == ["one", "echo a", "a", "count", "1", "count", "2"]
    assert history(first, 1) == ["two", "count", "0", "reward 0.5", "paid", "refuse", "[not run: not this]"]
    assert history(first, 2) == ["three", "echo c", "c", "exit"]
    assert first.terminated.tolist() == [False, False, True, False]
    assert first.truncated.tolist() == [False, False, False, True]
    assert first.status.tolist() == [0, 0, 0, int(Status.HOST_ERROR)]
    assert first.chat.turn_rewards.tolist() == [[0] * 4, [0, 0.5, 0, 0], [0, 2, 0, 0], [0] * 4]
    assert "\\xff" in history(first, 3)[2] and history(first, 3)[4] == "half\n[stopped after 1 s]"
    with pytest.raises(sc.host.HostError, match="row 3: DEAD: it died of a command"):
        check_host(first)


@EVERY_WAY
def test_the_session_learns_who_asks_and_the_seed_is_the_rows_own(step: Steps) -> None:
    with hosted() as (env, _, world):
        states = step(env, start(env), says("seed", "seed", "who", "echo é"))
        seeds = {history(states, row)[-1] for row in (0, 1)}
        assert len(seeds) == 2
        assert history(states, 2)[-1] == "(-1, -1, -1, 0)"
        assert history(states, 3)[-1] == "é"
        states = step(env, states, says("seed", "seed", "who", "count"))
        assert {history(states, row)[-1] for row in (0, 1)} == seeds
        assert history(states, 2)[-1] == "(-1, -1, -1, 1)"
        assert len(world.sessions) == 4


@EVERY_WAY
def test_an_answer_in_pieces_is_one_command(step: Steps) -> None:
    with hosted(response_len=2 * WIDTH) as (env, _, world):
        states = start(env)
        begun = CODEC.encode_actions(["echo one"] * B)
        begun = sc.Action(begun.tokens, begun.length - 1, None, jnp.zeros(B, bool))
        states = step(env, states, begun)
        assert world.ran == [] and states.chat.turn.tolist() == [0] * B
        states = step(env, states, says(" a", " b", " c", " d"))
        assert [history(states, row)[-1] for row in range(B)] == ["one a", "one b", "one c", "one d"]


@EVERY_WAY
def test_an_answer_that_is_too_long_is_not_run_and_the_model_is_told(step: Steps) -> None:
    with hosted(response_len=8) as (env, _, world):
        states = step(env, start(env), says("echo 123456", "echo 1", "echo 12345", "x"))
        assert history(states)[-1] == "[not run: the answer is longer than what can be run; shorten it]"
        assert world.count("echo 123456") == 0
        assert visits_of(states)[0].outcome.tolist() == [int(Outcome.REFUSED), 0, int(Outcome.REFUSED), 0]
        states = step(env, states, says("count", "count", "echo 12345", "count"))  # and the next one is
        assert [history(states, row)[-1][:9] for row in range(B)] == ["0", "1", "[not run:", "1"]
        states = step(env, states, says("count", "count", "count", "count"))
        assert [history(states, row)[-1] for row in range(B)] == ["1", "2", "0", "2"]
        assert states.status.tolist() == [0] * B


def test_a_reader_that_refuses_is_told_to_the_model_and_counts_no_command() -> None:
    def read(text: str) -> bytes:
        if not text.startswith("run "):
            raise ValueError("write run, and the command")
        return text[4:].encode()

    with hosted(read=read) as (env, _, _):
        states = turn(env, start(env), says("count", "run count", "", "run count"))
        states = turn(env, states, says("run count", "run count", "run count", "hm"))
        assert history(states)[2:] == ["[not run: write run, and the command]", "run count", "0"]
        assert history(states, 1)[-1] == "1" and history(states, 2)[-1] == "0"
        assert states.status.tolist() == [0] * B


@EVERY_WAY
def test_output_that_is_too_long_keeps_head_and_tail_and_says_how_much_is_left_out(step: Steps) -> None:
    with hosted() as (env, _, _):
        states = step(env, start(env), says("big 4000", "big 96", "binary", "echo"))
        length = states.chat.length - jax.vmap(sc.reset, (None, 0))(sc.init(CONFIG), data()).length
        assert (length <= WIDTH + CONFIG.max_message_len).all()
        shown = history(states)[-1]
        head, note, tail = shown.partition("\n[")
        count, _, tail = tail.partition(" bytes left out]\n")
        assert note and shown.startswith("0000000 ") and shown.endswith("0000499 ")
        assert len(head) + int(count) + len(tail) == 4000
        assert len(shown) > 40  # most of the room is used
        assert history(states, 3)[-1] == ""
        assert states.status.tolist() == [0] * B


def test_what_does_not_fit_is_cut_and_counted() -> None:
    for size in (0, 1, 7, 50):
        text = "é" * 100
        shown = cut(text, size)
        kept = shown.count("é")
        assert kept == size and f"[{2 * (100 - size)} bytes left out]" in shown
    block = fit_messages(CODEC, "user", ["ab" * 999, "short", "\ud800"], ["assistant"] * 3, ["generate"] * 3, 96)
    assert (np.asarray(block.length) <= 96).all()
    with pytest.raises(ValueError, match="raise max_message_len"):
        fit_messages(CODEC, "user", ["x" * 99], ["assistant"], ["generate"], 40)


@EVERY_WAY
def test_a_row_that_begins_anew_gets_a_fresh_session(step: Steps) -> None:
    with hosted() as (env, _, world):
        states = step(env, start(env), says("count", "count", "count", "count"))
        states = step(env, states, says("count", "exit", "count", "die"))
        assert len(world.living) == 2
        anew = sc.envs.restart(env, states, data(), jnp.asarray([False, True, True, True]))
        visit = visits_of(anew)[0]
        assert visit.generation.tolist() == [0, 1, 1, 1] and visit.calls.tolist() == [2, 0, 0, 0]
        anew = step(env, anew, says("count", "count", "count", "count"))
        assert [history(anew, row)[-1] for row in range(B)] == ["2", "0", "0", "0"]
        assert visits_of(anew)[0].slot.tolist() == visits_of(states)[0].slot.tolist()
        assert len(world.sessions) == 7 and len(world.living) == 4
        late = step(env, states, says("count", "count", "count", "count"))  # of the old states: what is over stays so
        assert late.status.tolist()[2] == int(Status.HOST_ERROR)
        assert visits_of(late)[0].outcome.tolist()[2] == int(Outcome.STALE)


def test_a_copy_that_goes_another_way_is_forked_and_one_that_goes_the_same_is_answered_the_same() -> None:
    with hosted() as (env, _, world):
        states = turn(env, start(env), says("count", "count", "count", "count"))
        twins = jax.tree.map(lambda leaf: leaf[jnp.asarray([0, 0, 1, 1])], states)
        twins = turn(env, twins, says("count", "count", "count", "echo"))
        assert twins.status.tolist() == [0, 0, 0, int(Status.HOST_ERROR)]
        assert history(twins, 0) == history(twins, 1)
        assert visits_of(twins)[0].outcome.tolist()[3] == int(Outcome.FORKED)
        assert world.count("count") == 6


def test_the_last_turn_lets_go_of_the_session() -> None:
    with hosted() as (env, _, world):
        states = turn(env, start(env, turn_limit=1), says("count", "count", "count", "count"))
        assert states.truncated.all() and not states.chat.awaits_answer.any()
        assert world.living == [] and [s.kills for s in world.sessions] == [1] * B
        assert history(states) == ["one", "count"]
        again = turn(env, states, says(*IDLE))
        assert world.count("count") == 4 and not again.reward.any()


@EVERY_WAY
def test_closing_the_registry_midway_ends_rows_and_raises_nothing(step: Steps) -> None:
    with hosted() as (env, registry, world):
        states = step(env, start(env), says("count", "count", "count", "exit"))
        registry.close()
        states = step(env, states, says("count", "count", "count", "count"))
        assert states.status.tolist() == [int(Status.HOST_ERROR)] * 3 + [0]
        assert states.done.all() and world.living == []
        with pytest.raises(sc.host.HostError, match="EXHAUSTED: the registry of sessions is closed"):
            check_host(states)


@EVERY_WAY
def test_without_a_session_to_be_had_only_those_rows_end(step: Steps) -> None:
    with hosted(size=2) as (env, _, _):
        states = step(env, start(env), says("count", "count", "count", "count"))
        assert states.status.tolist().count(int(Status.HOST_ERROR)) == 2
        assert sorted(visits_of(states)[0].outcome.tolist()) == [0, 0, int(Outcome.EXHAUSTED), int(Outcome.EXHAUSTED)]
    with hosted(World(start=lambda number: Outcome.START_FAILED)) as (env, _, _):
        states = step(env, start(env), says("count", "count", "count", "count"))
        assert states.status.tolist() == [int(Status.HOST_ERROR)] * B
        with pytest.raises(sc.host.HostError, match="no engine answers"):
            check_host(states)


def test_what_a_session_breaks_ends_its_row_alone_and_check_has_the_cause() -> None:
    with hosted() as (env, _, world):
        states = turn(env, start(env), says("raise", "quit", "nothing", "nan"))
        assert states.status.tolist() == [int(Status.HOST_ERROR)] * B
        assert np.isfinite(states.chat.turn_rewards).all() and not states.reward.any()
        assert world.living == []
        with pytest.raises(sc.host.HostError, match="row 0: FAULT: KeyError") as caught:
            check_host(states)
        assert isinstance(caught.value.__cause__, KeyError)


def test_parts_are_messages_and_the_last_one_opens_the_answer() -> None:
    with hosted(messages=2) as (env, _, _):
        states = STEP(env, start(env), says("parts a", "parts a b", "echo a", "count"))
        assert history(states)[1:] == ["parts a", "a"] and history(states, 1)[1:] == ["parts a b", "a", "b"]
        assert states.chat.awaits_answer.all()


def test_a_slow_row_does_not_stall_the_others_and_is_collected_later() -> None:
    world = World()
    with hosted(world, deadline_s=2.0) as (env, _, _):
        states = STEP(env, start(env), says("wait 0", "count", "count", "count"))
        assert states.chat.pending.tolist() == [True, False, False, False]
        assert states.status.tolist() == [int(Status.PENDING), 0, 0, 0] and states.chat.turn.tolist() == [0, 1, 1, 1]
        world.gate.set()
        while bool(states.chat.pending[0]):
            states = STEP(env, states, says("count", "count", "count", "count"))
        assert history(states) == ["one", "wait 0", "waited0"]
        assert history(states, 1)[-1] == "1"
        assert world.count("wait 0") == 1
        states = STEP(env, states, says("count", *IDLE[1:]))
        assert history(states)[-1] == "1"


class Host:
    """A host that makes answers that begin with ``wait`` wait until it is open; it judges and speaks."""

    def __init__(self, *, waits: bool = True, speaks: bool = True) -> None:
        self.open, self.speaks = not waits, speaks
        self.asked: list[Answer] = []
        self._lock = threading.Lock()

    def __call__(self, answers: list[Answer]) -> list[Verdict]:
        with self._lock:
            self.asked += answers
        return [self._verdict(answer) for answer in answers]

    def _verdict(self, answer: Answer) -> Verdict:
        slot, generation = max(answer.ticket.slot, 5), answer.ticket.generation
        if answer.text.startswith("wait") and not self.open:
            return Verdict(slot, generation, pending=True)
        ends = answer.text.endswith("end")
        said = (answer.text.upper(),) if self.speaks and not ends else ()
        return Verdict(slot, generation, messages=said, reward=0.25, terminate=ends)


def judged(state: Any, action: Any) -> Any:
    return jnp.float32(1)


def solved(state: Any, action: Any) -> Any:
    """The answer ends with an x."""
    tokens, length = sc.rewards.response_tokens(state)
    return tokens[jnp.maximum(length - 1, 0)] == CODEC.encode_actions(["x"]).tokens[0, 0]


def more(state: Any, action: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), MORE), jnp.bool_(True)


MORE = CODEC.encode_messages("user", ["more"])


def chain(host: Host) -> Any:
    """A host that judges, a judge, a stop rule and a reply around it."""
    base = with_host(sc.chat_env(CONFIG), CODEC, host, messages=0)
    return sc.with_reply(sc.with_stop(sc.with_reward(base, judged), solved), more)


def talks(host: Host) -> Any:
    """A host that speaks, and a judge around it."""
    return sc.with_reward(with_host(sc.chat_env(CONFIG), CODEC, host), judged)


SCRIPT = [("wait a", "b", "wait x", "wait end"), ("a", "b", "c", "d")]


@pytest.mark.parametrize("make", [chain, talks])
@EVERY_WAY
@pytest.mark.parametrize("turn_limit", [1, 4])
def test_a_row_that_waited_goes_on_as_if_it_never_had(make: Any, step: Steps, turn_limit: int) -> None:
    quick, slow = Host(waits=False), Host()
    env = make(quick)
    want = step(env, start(env, turn_limit=turn_limit), says(*SCRIPT[0]))
    env = make(slow)
    states = step(env, start(env, turn_limit=turn_limit), says(*SCRIPT[0]))
    assert states.chat.pending.tolist() == [True, False, True, True]
    assert states.reward.tolist() == [0, 1.25, 0, 0] and states.chat.turn.tolist() == [0, 1, 0, 0]
    assert states.done.tolist() == [False, turn_limit == 1, False, False]
    for junk in ("zz", "x"):  # what a policy says meanwhile is not written
        meant, waits = says(junk, "", junk, junk), jnp.asarray([True, False, True, True])
        frozen = sc.Action(meant.tokens, jnp.where(waits, meant.length, 0), None, waits)
        before = states
        states = step(env, states, frozen)
        for row in (0, 2, 3):
            assert history(states, row) == history(before, row) and int(states.status[row]) == int(Status.PENDING)
        assert states.reward.tolist()[2:] == [0, 0]
    assert len(slow.asked) == 10 and all(answer.text.startswith("wait") for answer in slow.asked[4:])
    slow.open = True
    states = step(env, states, frozen)
    assert not states.chat.pending.any()
    assert states.reward.tolist() == [1.25, 0, 1.25, 1.25]
    for name in ("turn", "turn_rewards", "status", "terminated", "truncated", "awaits_answer"):
        np.testing.assert_array_equal(getattr(states.chat, name), getattr(want.chat, name), err_msg=name)
    for got, wanted in zip(jax.vmap(sc.prompt)(states.chat), jax.vmap(sc.prompt)(want.chat), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert visits_of(states)[0].calls.tolist() == [1] * B and not visits_of(states)[0].waits.any()
    assert states.chat.turn_rewards[:, 0].tolist() == [1.25] * B
    states = step(env, states, says(*SCRIPT[1]))
    want = step(make(quick), want, says(*SCRIPT[1]))
    assert states.chat.turn_rewards.tolist() == want.chat.turn_rewards.tolist()
    assert [history(states, row) for row in range(B)] == [history(want, row) for row in range(B)]


def test_a_row_that_waits_may_begin_anew() -> None:
    host = Host()
    env = talks(host)
    states = STEP(env, start(env), says("wait", "wait", "wait", "wait"))
    states = sc.envs.restart(env, states, data(), jnp.asarray([True, True, False, False]))
    assert states.chat.pending.tolist() == [False, False, True, True]
    assert visits_of(states)[0].generation.tolist() == [1, 1, 0, 0] and not visits_of(states)[0].waits[:2].any()
    states = STEP(env, states, says("a", "b", "c", "d"))
    assert history(states) == ["one", "a", "A"] and states.chat.pending.tolist() == [False, False, True, True]
    host.open = True
    states = STEP(env, states, says(*IDLE))
    assert history(states, 2) == ["three", "wait", "WAIT"]


def test_a_host_that_breaks_ends_its_rows_and_those_that_waited_too() -> None:
    host = Host()
    env = talks(host)
    states = STEP(env, start(env), says("wait", "a", "b", "c"))

    def broken(answers: list[Answer]) -> list[Verdict]:
        raise ValueError("the host is broken")

    desks[int(visits_of(states)[0].handle[0])]._serve = broken
    states = STEP(env, states, says("d", "e", "f", "g"))
    assert states.status.tolist() == [int(Status.HOST_ERROR)] * B and not states.chat.pending.any()
    assert states.chat.turn.tolist() == [1, 2, 2, 2]
    assert np.allclose(states.chat.turn_rewards.sum(1), [0, 1.25, 1.25, 1.25])
    assert states.reward.tolist() == [0] * B


def test_a_reward_that_is_not_finite_is_not_a_reward() -> None:
    def serve(answers: list[Answer]) -> list[Verdict]:
        return [Verdict(reward=float(answer.text)) for answer in answers]

    env = with_host(sc.chat_env(CONFIG), CODEC, serve, messages=0)
    states = turn(env, start(env), says("nan", "1.5", "inf", "1e300"))
    assert states.reward.tolist() == [0, 1.5, 0, 0]
    assert states.status.tolist() == [int(Status.FORMAT_ERROR), 0, int(Status.FORMAT_ERROR), int(Status.FORMAT_ERROR)]


def test_one_session_inside_of_another_each_speaks_where_it_has_something_to_say() -> None:
    def only(name: str) -> Any:
        def show(reply: Reply) -> str | None:
            text = show_reply(reply)
            return text if text.startswith(name) else None

        return show

    with hosted(show=only("a")) as (inner, _, one), hosted(inside=inner, show=only("b")) as (env, _, two):
        states = STEP(env, start(env), says("echo a1", "echo b1", "echo a2", "exit"))
        assert [history(states, row)[-1] for row in range(B)] == ["a1", "b1", "a2", "exit"]
        assert one.count("echo a1") == two.count("echo a1") == 1
        assert states.status.tolist() == [0] * B and states.terminated.tolist() == [False, False, False, True]
        states = STEP(env, states, says("echo b1", "echo a1", "echo b2", "exit"))
        assert [history(states, row)[-1] for row in range(B)] == ["b1", "a1", "b2", "exit"]
        assert [visit.calls.tolist() for visit in visits_of(states)] == [[2, 2, 2, 1]] * 2


def test_of_two_hosts_that_wait_each_is_asked_once_the_one_inside_first() -> None:
    inner, outer = Host(), Host(speaks=False)
    env = with_host(with_host(sc.chat_env(CONFIG), CODEC, inner), CODEC, outer, messages=0)
    states = STEP(env, start(env), says("wait", "a", "wait", "b"))
    assert len(inner.asked) == 4 and len(outer.asked) == 2
    inner.open = True
    states = STEP(env, states, sc.Action(says(*IDLE).tokens, says(*IDLE).length, None, jnp.zeros(B, bool)))
    assert len(outer.asked) == 4 and states.chat.pending.tolist() == [True, False, True, False]
    outer.open = True
    states = STEP(env, states, sc.Action(says(*IDLE).tokens, says(*IDLE).length, None, jnp.zeros(B, bool)))
    assert len(inner.asked) == 6 and not states.chat.pending.any()
    assert states.chat.turn_rewards[:, 0].tolist() == [0.5] * B
    assert history(states) == ["one", "wait", "WAIT"]


class Flat:
    """A registry whose answers depend on the command alone, as those of the laws have to."""

    def call(self, tickets: Any, actions: Any, *, deadline_s: Any = None) -> list[Called]:
        replies = [Reply(a[:9], event="exit" if len(a) == 3 else None, reward=len(a) / 8) for a in actions]
        return [Called(3, ticket.generation, reply) for ticket, reply in zip(tickets, replies, strict=True)]


def test_it_keeps_the_laws_of_every_environment() -> None:
    env = with_session(sc.chat_env(CONFIG), CODEC, Flat(), response_len=6)  # type: ignore[arg-type]
    api_test(sc.with_reward(env, judged), data(), num_steps=3)


def test_a_role_that_the_template_cannot_write_is_refused_when_it_is_made() -> None:
    template = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}"
    template += "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    config = sc.make_config(
        TOKENIZER, capacity=256, max_messages=8, max_message_len=96, max_turns=2, chat_template=template
    )
    with pytest.raises(ValueError, match="role='tool'"):
        Desk(sc.Codec(TOKENIZER, config), Host(), role="tool", response_len=8, message_len=96)
    narrow = sc.make_config(TOKENIZER, capacity=256, max_messages=8, max_message_len=24, max_turns=2)
    with pytest.raises(ValueError, match="raise max_message_len"):
        with_host(sc.chat_env(narrow), sc.Codec(TOKENIZER, narrow), Host())


def test_a_desk_that_is_closed_ends_rows() -> None:
    env = talks(Host())
    states = STEP(env, start(env), says("a", "b", "c", "d"))
    desks[int(visits_of(states)[0].handle[0])].close()
    states = STEP(env, states, says("a", "b", "c", "d"))
    assert states.status.tolist() == [int(Status.HOST_ERROR)] * B
    assert states.chat.turn_rewards.tolist() == [[1.25, 0, 0, 0]] * B


def test_what_an_answer_is_on_the_host_is_what_the_codec_says_of_it() -> None:
    texts = ["", "é", "a<|im_end|>b", "x" * 31]
    actions = says(*texts)
    states = jax.vmap(sc.step)(jax.vmap(sc.reset, (None, 0))(sc.init(CONFIG), data()), actions)
    tokens, length = jax.vmap(lambda chat: sc.last_response(chat, WIDTH))(states)
    finish = [int(sc.Finish.STOP)] * B
    assert CODEC.decode_answers(tokens, length, finish) == CODEC.decode_responses(states) == texts
    assert CODEC.decode_answers(tokens[0], length[0], finish[0]) == texts[:1]


def test_tickets_of_rows_that_were_never_there_stay_as_they_are() -> None:
    fresh = Visit.fresh(9)
    kept = Visit.renewed(fresh, fresh)
    assert kept.ticket.tolist() == [9, -1, 0, 0, 0, 0]
    used = Visit(jnp.asarray([4, 2, 5, 7, 1, 3], jnp.int32))
    assert Visit.renewed(fresh, used).ticket.tolist() == [9, 2, 6, 0, 0, 0]
