"""What a turn costs on device, as ratios to things measured beside it in this process. Prints JSON lines.

    python benchmarks/core.py [--batches 1 64 1024] [--rounds 30]

A turn is one `step` of 64 sampled ids and one `append` of a 32-id block, all rows at once; 16 turns are scanned in
one jit with donated states. Runs unchanged on CPU, GPU and TPU. The things compared take turns, round by round, and a
figure is the minimum over the rounds, so that load on the machine touches both sides alike.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import statelesschat as sc
from statelesschat.core.config import Gap
from statelesschat.core.types import Count

TURNS, ANSWER, REPLY, STOP = 16, 64, 32, 8
LENGTH = int(Count.LENGTH)


def make_template() -> sc.ChatTemplate:
    """A ChatML-like template with ids of its own: what a turn costs depends on widths alone."""
    user, assistant, start, generate = sc.Kind.USER, sc.Kind.ASSISTANT, sc.Kind.START, sc.Kind.GENERATE

    def gap(previous: int, following: int, core: tuple[int, ...], lead: tuple[int, ...]) -> Gap:
        return Gap(int(previous), int(following), "", "", "", (), core, lead)

    return sc.ChatTemplate(
        kind="EXACT",
        gaps=(
            gap(start, user, (7,), (20, 10)),
            gap(user, generate, (STOP, 10, 7), (22, 10)),
            gap(user, assistant, (STOP, 10, 7), (22, 10)),
            gap(assistant, user, (STOP, 10, 7), (20, 10)),
        ),
        roles=("system", "user", "assistant", "tool"),
        transforms=("identity",) * 4,
        nonempty=(False,) * 4,
        stop_ids=(STOP, 2),
        stop_id=STOP,
        closing="",
        closing_ids=(),
        rest_core="",
        rest_core_ids=(),
        rest_lead="",
        shifts=((int(assistant), 1),),
        pad_id=0,
        vocab_size=100,
        source="",
        options=(),
        clock="",
        piece_encoding="plain",
        trusted_control_tokens=False,
    )


@dataclasses.dataclass
class Turns:
    """The scanned turns over a batch, ready to be run again and again in the same donated buffers."""

    batch: int
    capacity: int = 4096
    logprobs: bool = False

    def __post_init__(self) -> None:
        """Build the config, the states, the turns' inputs and the compiled loop."""
        self.config = sc.ChatConfig(
            make_template(),
            capacity=self.capacity,
            max_messages=2 * TURNS + 2,
            max_message_len=REPLY + 1,
            max_prompt_len=64,
            max_response_len=ANSWER,
            max_turns=TURNS + 1,
            store_logprobs=self.logprobs,
        )
        user, assistant, generate = sc.Role.USER, sc.Role.ASSISTANT, sc.Kind.GENERATE
        data = sc.compose(self.config, [(user, jnp.full(5, 30, jnp.int32), jnp.int32(5))])
        data = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.batch, *x.shape)), data)
        self.states = jax.vmap(sc.reset, (None, 0))(sc.init(self.config), data)
        self.counts = np.asarray(self.states.counts)
        shape = (TURNS, self.batch)
        answers = jnp.full((*shape, ANSWER), 33, jnp.int32).at[..., -1].set(STOP)
        logprobs = jnp.full((*shape, ANSWER), -0.5, jnp.float32) if self.logprobs else None
        actions = sc.Action(answers, jnp.full(shape, ANSWER, jnp.int32), logprobs, jnp.ones(shape, bool))
        content = REPLY + 1 - 10
        reply = sc.glue(self.config, jnp.full(content, 44, jnp.int32), jnp.int32(content), user, assistant, generate)
        replies = jax.tree.map(lambda x: jnp.broadcast_to(x, (*shape, *x.shape)) + jnp.zeros((), x.dtype), reply)
        self.inputs = (actions, replies)
        self.run_turns = jax.jit(scan_turns, donate_argnums=0).lower(self.states, self.inputs).compile()

    def prepare(self) -> None:
        """Put the counts back to where the first prompt ended; the buffers stay where they are."""
        self.states = dataclasses.replace(self.states, counts=jnp.asarray(self.counts.copy()))
        jax.block_until_ready(self.states)

    def __call__(self) -> None:
        """All turns, to the end."""
        self.states, rewards = self.run_turns(self.states, self.inputs)
        jax.block_until_ready((self.states, rewards))

    def check(self) -> None:
        """Raise unless every row took every turn."""
        end = self.counts[:, LENGTH]
        if not bool(jnp.all(self.states.length == end + TURNS * (ANSWER + REPLY))) or bool(jnp.any(self.states.done)):
            raise AssertionError("the turns were not all taken; the figures would mean nothing")


def scan_turns(states: sc.ChatState, inputs: tuple[sc.Action, sc.Message]) -> tuple[sc.ChatState, jax.Array]:
    """Step and append of every row, scanned over the turns."""

    def turn(states: sc.ChatState, inputs: tuple[sc.Action, sc.Message]) -> tuple[sc.ChatState, jax.Array]:
        states = jax.vmap(sc.append)(jax.vmap(sc.step)(states, inputs[0]), inputs[1])
        return states, states.reward

    return jax.lax.scan(turn, states, inputs)


def numpy_floor(turns: Turns) -> Callable[[], None]:
    """The same blocks written by numpy into an array of the same shape, in place, all rows at one offset."""
    answers = np.asarray(turns.inputs[0].tokens)
    replies = np.ascontiguousarray(np.asarray(turns.inputs[1].tokens)[..., :REPLY])
    buffer = np.zeros((turns.batch, turns.config.buffer), np.int32)
    start = int(turns.counts[0, LENGTH])

    def write() -> None:
        at = start
        for turn in range(TURNS):
            buffer[:, at : at + ANSWER] = answers[turn]
            at += ANSWER
            buffer[:, at : at + REPLY] = replies[turn]
            at += REPLY

    return write


def cartpole(batch: int) -> Callable[[], None]:
    """Gymnax's CartPole, stepped by scan and vmap as its documentation does, for as many steps."""
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    keys = jax.random.split(jax.random.key(0), batch)
    _, states = jax.vmap(env.reset, (0, None))(keys, params)

    def step(carry: tuple[Any, Any], action: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        key, states = carry
        key, now = jax.random.split(key)
        out = jax.vmap(env.step, (0, 0, 0, None))(jax.random.split(now, batch), states, action, params)
        return (key, out[1]), out[2]

    actions = jnp.zeros((TURNS, batch), jnp.int32)
    carry = (jax.random.key(1), states)
    compiled = jax.jit(lambda carry, actions: jax.lax.scan(step, carry, actions)).lower(carry, actions).compile()

    def run() -> None:
        jax.block_until_ready(compiled(carry, actions))

    return run


def measure(runs: dict[str, Callable[[], None]], rounds: int, target: float = 0.002) -> dict[str, float]:
    """Seconds of one call of each, the minimum over interleaved rounds; short calls are repeated within a round."""
    repeats = {}
    for name, run in runs.items():
        seconds = min(_timed(run, 1) for _ in range(3))
        repeats[name] = max(1, int(target / max(seconds, 1e-7)))
    best: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            best[name].append(_timed(run, repeats[name]))
    return {name: min(times) for name, times in best.items()}


def _timed(run: Callable[[], None], repeats: int) -> float:
    total = 0.0
    for _ in range(repeats):
        prepare = getattr(run, "prepare", None)
        if prepare is not None:
            prepare()
        start = time.perf_counter()
        run()
        total += time.perf_counter() - start
    return total / repeats


def turn_figures(batch: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Cost of a turn against numpy's floor and CartPole's step, with and without logprobs."""
    plain, logprobs = Turns(batch), Turns(batch, logprobs=True)
    runs = {"plain": plain, "logprobs": logprobs, "numpy": numpy_floor(plain), "cartpole": cartpole(batch)}
    seconds = measure(runs, rounds)
    for name, turns in (("plain", plain), ("logprobs", logprobs)):
        turns.check()
        yield {
            "benchmark": "turn",
            "batch": batch,
            "capacity": turns.capacity,
            "logprobs": turns.logprobs,
            "us_per_turn": seconds[name] / TURNS * 1e6,
            "turns_per_s": batch * TURNS / seconds[name],
            "numpy_us_per_turn": seconds["numpy"] / TURNS * 1e6,
            "times_numpy": seconds[name] / seconds["numpy"],
            "cartpole_us_per_step": seconds["cartpole"] / TURNS * 1e6,
            "speed_of_cartpole": seconds["cartpole"] / seconds[name],
        }


def capacity_figures(batch: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Cost of a turn in a large buffer over that in a small one."""
    small, large = Turns(batch, capacity=2048), Turns(batch, capacity=16384)
    seconds = measure({"small": small, "large": large}, rounds)
    small.check()
    large.check()
    yield {
        "benchmark": "capacity",
        "batch": batch,
        "us_per_turn_2048": seconds["small"] / TURNS * 1e6,
        "us_per_turn_16384": seconds["large"] / TURNS * 1e6,
        "times": seconds["large"] / seconds["small"],
    }


def call_figures(rounds: int) -> Iterator[dict[str, Any]]:
    """Microseconds of one jit call of one turn at batch 1, arguments and results included."""
    turns = Turns(1)
    inputs = jax.tree.map(lambda x: x[0], turns.inputs)
    call = jax.jit(lambda s, i: jax.vmap(sc.append)(jax.vmap(sc.step)(s, i[0]), i[1]), donate_argnums=0)

    def run() -> None:
        for _ in range(TURNS):
            turns.states = call(turns.states, inputs)
        jax.block_until_ready(turns.states)

    run.prepare = turns.prepare  # type: ignore[attr-defined]
    times = [_timed(run, 1) for _ in range(10 * rounds)]
    leaves = len(jax.tree.leaves(turns.states)) + len(jax.tree.leaves(inputs))
    yield {
        "benchmark": "jit_call",
        "batch": 1,
        "leaves": leaves,
        "us_per_call": min(times) / TURNS * 1e6,
        "us_per_call_median": statistics.median(times) / TURNS * 1e6,
    }


def main() -> None:
    """Print every figure as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    device = jax.devices()[0]
    where = {"device": f"{device.platform}:{device.device_kind}", "jax": jax.__version__}
    for batch in options.batches:
        for figure in turn_figures(batch, options.rounds):
            print(json.dumps(where | figure), flush=True)
    for batch in options.batches:
        for figure in capacity_figures(batch, options.rounds):
            print(json.dumps(where | figure), flush=True)
    for figure in call_figures(options.rounds):
        print(json.dumps(where | figure), flush=True)


if __name__ == "__main__":
    main()
