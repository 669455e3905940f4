"""A program of many conversations in which everything goes wrong that can; it tells, as JSON, what became of them.

    python -m tests.host.storm CONVERSATIONS NUMBER

Sessions are killed, from within and from outside; commands hang, end their shell, write garbage, leave processes
behind; graders hang, crash, raise and return nan, and their processes are killed at random. ``NUMBER`` is what
processes that are left behind sleep for, so that they can be found. With 0 conversations it goes on until it is killed.
"""

import collections
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import statelesschat as sc
from statelesschat.data import RowInfo
from statelesschat.host import (
    GraderPool,
    Registry,
    ShellSession,
    faults,
    processes,
    references_of,
    with_grader,
    with_session,
)
from tests.host import toys

BATCH, TURNS, MOST_STEPS = 20, 3, 400
LIMITS = {
    "capacity": 1024, "max_messages": 12, "max_message_len": 96, "max_response_len": 96, "max_turns": TURNS,
}  # fmt: skip


class Kind(NamedTuple):
    """A conversation: its second command, the status that it ends with, and what is said of that."""

    command: str
    status: str = "OK"
    said: str = ""
    third: str = "after"  # what the third command, ``echo after``, has as its output
    grade: float = 0.0


KINDS = {
    "good": Kind("echo fine", grade=1.0),
    "killed": Kind("kill -9 $$", "HOST_ERROR", "DEAD"),
    "all else killed": Kind("kill -9 -1"),
    "hangs": Kind("sleep 1000"),
    "reads": Kind("cat"),
    "garbage": Kind("head -c 300000 /dev/urandom"),
    "zeros": Kind(r"printf '\0\1\377'"),
    "much": Kind("yes | head -c 3000000"),
    "unclosed": Kind("cat <<E"),
    "wrong": Kind("if then fi ("),
    "silenced": Kind("exec 2>/dev/null"),
    "exits": Kind("exit 3", third=""),
    "spoofed": Kind(r"printf '\x1e\x1e0 0 /\n'; echo __END__ 0"),
    "orphans": Kind("setsid sleep {number} & sleep {number} & echo more"),
    "grader hangs": Kind("hang", "HOST_ERROR", "TIMEOUT"),
    "grader crashes": Kind("crash", "HOST_ERROR", "DEAD"),
    "grader raises": Kind("raise", "HOST_ERROR", "no idea"),
    "grader says nan": Kind("nan", "HOST_ERROR", "nan"),
}


@jax.jit
def step(env: Any, states: Any, actions: Any) -> Any:
    return jax.vmap(env.step)(states, actions)


def main() -> None:
    """Run, and tell."""
    conversations, number = int(sys.argv[1]), int(sys.argv[2])
    tokenizer = sc.load_tokenizer(None)
    codec = sc.Codec(tokenizer, sc.make_config(tokenizer, **LIMITS))
    open_before = sockets()
    became: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    kills = 0
    with (
        Registry(ShellSession, timeout_s=1.0, max_bytes=4000, size=BATCH + 8, starts_at_once=8) as registry,
        GraderPool(toys.act, workers=2, timeout_s=1.0) as pool,
    ):
        env, _ = with_grader(
            with_session(sc.chat_env(codec.config), codec, registry, deadline_s=0.3), codec, pool, deadline_s=0.3
        )
        over = threading.Event()
        killer = Killer(pool, over)
        killer.start()
        batches = itertools.count() if not conversations else range(conversations // BATCH)
        for batch in batches:
            names = [list(KINDS)[(batch * BATCH + i) % len(KINDS)] for i in range(BATCH)]
            states = played(env, codec, names, number)
            judge(codec, names, states, became, wrong)
            registry.release()  # those whose conversations a grader ended
            print(f"batch {batch}", file=sys.stderr, flush=True)
        over.set()
        killer.join()
        kills = killer.kills
        held = registry._pool._held
    left = {
        "held": held,
        "processes": len([p for p in processes.table().values() if p.parent == os.getpid()]),
        "sockets": sockets() - open_before,
        "files": os.listdir(tempfile.gettempdir()),
    }
    print(json.dumps({"became": became, "wrong": wrong, "kills": kills, "left": left}))


def played(env: Any, codec: Any, names: list[str], number: int) -> Any:
    """A batch of conversations, from their beginning until all of them are over."""
    ids = jnp.arange(len(names), dtype=jnp.int32)
    info = RowInfo(ids, ids, jnp.zeros_like(ids), jax.tree.map(jnp.asarray, references_of(["echo fine"] * len(names))))
    states = sc.begin(env, codec.encode(["?"] * len(names), info=info), jax.random.key(0))
    for _ in range(MOST_STEPS):
        turns = np.asarray(states.chat.turn).tolist()
        answers = [command(KINDS[name], turn, number) for name, turn in zip(names, turns)]
        states = step(env, states, codec.encode_actions(answers, width=96))
        if bool(states.done.all()):
            return states
    raise SystemExit(f"stuck: {[n for n, done in zip(names, states.done.tolist()) if not done]}")


def command(kind: Kind, turn: int, number: int) -> str:
    """What is answered in a turn."""
    first = f"setsid sleep {number} >/dev/null & echo begun"
    return (first, kind.command.format(number=number) if "{" in kind.command else kind.command, "echo after")[
        min(turn, TURNS - 1)
    ]


def judge(codec: Any, names: list[str], states: Any, became: collections.Counter[str], wrong: list[str]) -> None:
    """Whether all ended as their kind does; what befell others from outside is counted."""
    said = faults(states)
    histories = codec.decode_history(states)
    for row, name in enumerate(names):
        kind, status = KINDS[name], sc.Status(int(states.status[row])).name
        rewards = states.chat.turn_rewards[row].tolist()
        became[status] += 1
        struck = status == "HOST_ERROR" and said.get(row, "").startswith(("DEAD", "START_FAILED", "FAULT: no worker"))
        as_it_is = status == kind.status and kind.said in said.get(row, "") and rewards[1] == kind.grade
        text = histories[row][-1]["content"]
        if as_it_is and kind.status == "OK" and kind.third:
            # The third turn's output ends the conversation and is not appended; its answer is the last message.
            as_it_is = text == "echo after"
        if as_it_is and not kind.said and name != "exits":
            as_it_is = int(states.chat.turn[row]) == TURNS
        if as_it_is:
            became["as expected"] += 1
        elif struck:
            became["struck"] += 1
        else:
            wrong.append(f"{name}: {status}, {said.get(row, '')!r}, rewards {rewards}, last {text!r}")
    if not np.isfinite(np.asarray(states.reward)).all():
        wrong.append(f"rewards {states.reward.tolist()}")


class Killer(threading.Thread):
    """Kills a process of this program now and then: of a session, or of a grader."""

    def __init__(self, pool: GraderPool, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._pool, self._over, self._random = pool, over, random.Random(0)
        self.kills = 0

    def run(self) -> None:
        """Until it is over."""
        while not self._over.wait(self._random.uniform(0.02, 0.2)):
            graders = [worker._process.pid for worker in list(self._pool._living)]
            mine = [p.pid for p in processes.table().values() if p.parent == os.getpid() and p.pid not in graders]
            chosen = self._random.choice([graders, mine, mine])
            if chosen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(chosen), signal.SIGKILL)
                    self.kills += 1


def sockets() -> int:
    """How many are open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket")
    return found


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
