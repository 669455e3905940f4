"""What the host costs: a crossing, many commands at once, a sandboxed shell. Prints JSON lines.

    python benchmarks/host.py [--rounds 30] [--parts crossing sleeps shell]

``crossing`` compares a step with a callback, compiled alone and as a compiled loop of steps, with the same step as a
plain loop: one program before, one behind, and numpy between. They take turns; a figure is the minimum over rounds.
``shell`` has SWE-ReX's local runtime beside it, if it is installed (``pip install swe-rex``): no sandbox, the same
persistent bash.
"""

import argparse
import asyncio
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import statelesschat as sc
from statelesschat.host import Outcome, Registry, ShellSession, Ticket, with_session
from statelesschat.host.bridge import cross, register, unregister

LOOPED = 20  # steps of a compiled loop
ASKED, TOLD = 76, 80  # int32 each: 64 ids and what stands before them


def report(**figures: Any) -> None:
    """One line of JSON, numbers to three digits."""
    rounded = {key: float(f"{value:.3g}") if isinstance(value, float) else value for key, value in figures.items()}
    print(json.dumps(rounded), flush=True)


def best(runs: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Seconds of each, the minimum over rounds in which they take turns."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds + 3):
        for run, taken in zip(runs, times, strict=True):
            begun = time.perf_counter()
            run()
            if turn >= 3:
                taken.append(time.perf_counter() - begun)
    return [min(taken) for taken in times]


def crossing(rounds: int) -> None:
    """A callback beside a plain loop, the same numpy function behind both."""
    buffer = np.zeros((1024, TOLD), np.int32)

    def handler(rows: np.ndarray) -> np.ndarray:
        answers = buffer[: len(rows)].copy()
        answers[:, : rows.shape[1]] = rows
        return answers

    handle = register(handler, TOLD)

    def ask(tokens: jax.Array, count: jax.Array) -> jax.Array:
        return jnp.concatenate([count[None], tokens])[:ASKED]

    def tell(tokens: jax.Array, answer: jax.Array) -> jax.Array:
        return tokens + answer[1 : 1 + tokens.shape[0]]

    def step(tokens: jax.Array, count: jax.Array) -> jax.Array:
        return tell(tokens, cross(ask(tokens, count), jnp.int32(handle), count >= 0, TOLD)[1])

    for batch in (1, 64, 1024):
        tokens = jnp.zeros((batch, ASKED - 1), jnp.int32)
        counts = jnp.arange(batch, dtype=jnp.int32)
        each = jax.vmap(step)
        compiled = jax.jit(each)
        looped = jax.jit(partial(_looped, each))
        before, behind = jax.jit(jax.vmap(ask)), jax.jit(jax.vmap(tell))
        quick = 20 if batch < 1024 else 5

        def callback(tokens: Any = tokens, counts: Any = counts, run: Any = compiled, quick: int = quick) -> None:
            for _ in range(quick):
                tokens = run(tokens, counts)
            jax.block_until_ready(tokens)

        def loop(tokens: Any = tokens, counts: Any = counts, run: Any = looped) -> None:
            jax.block_until_ready(run(tokens, counts))

        def plain(
            tokens: Any = tokens, counts: Any = counts, before: Any = before, behind: Any = behind, quick: int = quick
        ) -> None:
            for _ in range(quick):
                rows = np.asarray(before(tokens, counts))
                tokens = behind(tokens, jnp.asarray(handler(rows)))
            jax.block_until_ready(tokens)

        one, within, other = best([callback, loop, plain], rounds)
        one, within, other = one / quick, within / LOOPED, other / quick
        report(
            figure="crossing",
            batch=batch,
            callback_us=one * 1e6,
            callback_in_a_loop_us=within * 1e6,
            plain_us=other * 1e6,
            ratio=one / other,
            ratio_in_a_loop=within / other,
        )
    unregister(handle)


def _looped(step: Callable[..., jax.Array], tokens: jax.Array, counts: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, LOOPED, lambda _, tokens: step(tokens, counts), tokens)


def sleeps(count: int = 32) -> None:
    """``count`` conversations that sleep half a second in their shells, in one compiled step."""
    tokenizer = sc.load_tokenizer(None)
    config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=4)
    codec = sc.Codec(tokenizer, config)
    with Registry(ShellSession, size=count, starts_at_once=8) as registry:
        env = with_session(sc.chat_env(config), codec, registry)
        states = sc.begin(env, codec.encode(["Sleep."] * count), 0)
        step = jax.jit(jax.vmap(env.step))
        states = jax.block_until_ready(step(states, codec.encode_actions(["true"] * count)))
        begun = time.perf_counter()
        states = jax.block_until_ready(step(states, codec.encode_actions(["sleep 0.5; echo up"] * count)))
        taken = time.perf_counter() - begun
        assert all(history[-1]["content"] == "up\n" for history in codec.decode_history(states))
    report(figure="sleeps", count=count, seconds_each=0.5, seconds=taken)


def shell(commands: int) -> None:
    """Resets and commands of shells, some at once."""
    for count in (1, 8, 32):
        resets, runs = _shells(count, max(commands // count, 20))
        report(figure="shell", at_once=count, **_spread("reset", resets), **_spread("command", runs))
    with Registry(ShellSession, size=33, starts_at_once=4) as registry:
        begun = time.perf_counter()
        registry.call([Ticket(-1, 0, 0)] * 32, [b"true"] * 32)
        report(figure="shells in a registry", at_once=32, first_commands_ms=(time.perf_counter() - begun) * 1e3)
    try:
        import swerex  # noqa: F401
    except ImportError:
        report(figure="swe-rex", note="not installed")
        return
    for count in (1, 8, 32):
        resets, runs = asyncio.run(_swerex(count, max(commands // count, 20) // 4))
        report(figure="swe-rex, local runtime", at_once=count, **_spread("reset", resets), **_spread("command", runs))


def _shells(count: int, commands: int) -> tuple[list[float], list[float]]:
    sessions = [ShellSession() for _ in range(count)]
    resets: list[float] = []
    runs: list[float] = []
    together = threading.Barrier(count)

    def work(session: ShellSession) -> None:
        together.wait()
        for seed in range(4):
            begun = time.perf_counter()
            assert session.reset(seed).outcome is Outcome.OK
            resets.append(time.perf_counter() - begun)
        together.wait()
        for turn in range(commands):
            begun = time.perf_counter()
            session.run(turn, b"echo hello; cd /tmp", timeout_s=10, idle_s=None, max_bytes=4096)
            runs.append(time.perf_counter() - begun)
        session.kill()

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return resets, runs


async def _swerex(count: int, commands: int) -> tuple[list[float], list[float]]:
    from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, CreateBashSessionRequest
    from swerex.runtime.local import LocalRuntime

    resets: list[float] = []
    runs: list[float] = []

    async def work() -> None:
        runtime = LocalRuntime()
        for again in (True, False):
            begun = time.perf_counter()
            await runtime.create_session(CreateBashSessionRequest(startup_timeout=30))
            resets.append(time.perf_counter() - begun)
            if again:
                await runtime.close_session(CloseBashSessionRequest())
        for _ in range(commands):
            begun = time.perf_counter()
            await runtime.run_in_session(BashAction(command="echo hello; cd /tmp", timeout=30))
            runs.append(time.perf_counter() - begun)
        await runtime.close()

    await asyncio.gather(*(work() for _ in range(count)))
    return resets, runs


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    late = ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]
    return {f"{name}_p50_ms": statistics.median(ordered) * 1e3, f"{name}_p95_ms": late * 1e3}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--parts", nargs="+", default=["crossing", "sleeps", "shell"])
    options = parser.parse_args()
    if "crossing" in options.parts:
        crossing(options.rounds)
    if "sleeps" in options.parts:
        sleeps()
    if "shell" in options.parts:
        shell(400)


if __name__ == "__main__":
    main()
