"""Sessions of many conversations: tickets, the pool, the threads they run in, and how it all ends."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statelesschat.host.crew import Crew
from statelesschat.host.endings import close_all, close_at_end, closed
from statelesschat.host.pool import NoSessionError, SessionPool
from statelesschat.host.registry import Called, Registry, Ticket
from statelesschat.host.session import Outcome, Reply
from tests.host.fake import LONG, World, until

ROOT = Path(__file__).parents[2]
Make = Callable[..., Registry]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def registry(world: World) -> Iterator[Make]:
    made: list[Registry] = []

    def make(**options) -> Registry:
        made.append(Registry(world.make, backoff_s=0.001, **options))
        return made[-1]

    yield make
    world.gate.set()
    for one in made:
        one.close()


def ask(registry: Registry, ticket: Ticket, command: str = "count", **options) -> Called:
    (called,) = registry.call([ticket], [command.encode()], **options)
    return called


def told(registry: Registry, ticket: Ticket, command: str = "count", **options) -> Reply:
    reply = ask(registry, ticket, command, **options).reply
    assert reply is not None
    return reply


def test_the_same_ticket_with_the_same_command_runs_once(registry: Make, world: World) -> None:
    one = registry()
    first = ask(one, Ticket(-1, 0, 0))
    assert first.slot >= 0 and first.reply is not None and first.reply.obs == b"0"
    assert told(one, Ticket(first.slot, 0, 0)) is first.reply
    assert told(one, Ticket(first.slot, 0, 1)).obs == b"1"
    assert told(one, Ticket(first.slot, 0, 1)).obs == b"1"
    assert len(world.ran) == 2 and len(world.sessions) == 1


@pytest.mark.parametrize(
    ("ticket", "command", "outcome"),
    [
        ((0, 5, 1), "echo", Outcome.FORKED),
        ((0, 5, 0), "count", Outcome.FORKED),  # gone by, whatever was run then
        ((0, 5, 3), "count", Outcome.SKIPPED),
        ((0, 5, -1), "count", Outcome.FORKED),
        ((0, 4, 1), "count", Outcome.STALE),
        ((0, 4, 0), "count", Outcome.STALE),
        ((9, 0, 1), "count", Outcome.STALE),  # not known, and not at its beginning
        ((-1, 0, 1), "count", Outcome.SKIPPED),
    ],
)
def test_a_ticket_of_another_place_is_refused(registry, world, ticket, command, outcome) -> None:
    one = registry()
    for turn in range(2):
        assert told(one, Ticket(0, 5, turn)).outcome is Outcome.OK
    refused = told(one, Ticket(*ticket), command)
    assert refused.outcome is outcome and refused.detail
    assert len(world.ran) == 2 and world.living == [0]
    assert told(one, Ticket(0, 5, 2)).obs == b"2"


def test_a_newer_generation_is_a_fresh_session(registry: Make, world: World) -> None:
    one = registry()
    slot = ask(one, Ticket(-1, 0, 0)).slot
    assert told(one, Ticket(slot, 1, 0)).obs == b"0"
    assert told(one, Ticket(slot, 1, 1)).obs == b"1"
    until(lambda: world.sessions[0].kills == 1)
    assert world.living == [1]
    assert told(one, Ticket(slot, 0, 1)).outcome is Outcome.STALE
    # One that does not begin at its beginning runs nothing, and does not leave the old session behind.
    assert told(one, Ticket(slot, 2, 3)).outcome is Outcome.SKIPPED
    assert world.living == [] and one._pool._held == 0


def test_a_newer_generation_ends_the_command_that_still_runs(registry: Make, world: World) -> None:
    one = registry()
    slot = ask(one, Ticket(-1, 0, 0), "hang", deadline_s=0.01).slot
    assert told(one, Ticket(slot, 1, 0)).obs == b"0"
    until(lambda: world.living == [1])


def test_a_slot_of_an_earlier_run_is_given_to_nobody_else(registry: Make) -> None:
    one = registry()
    assert told(one, Ticket(0, 3, 0)).outcome is Outcome.OK
    assert ask(one, Ticket(-1, 0, 0)).slot not in (0, -1)
    assert told(one, Ticket(0, 3, 1)).obs == b"1"


def test_after_the_final_command_the_session_is_let_go_of(registry: Make, world: World) -> None:
    one = registry(size=1)
    first = ask(one, Ticket(-1, 0, 0, final=True))
    assert world.living == [] and one.session(first.slot) is None
    assert told(one, Ticket(first.slot, 0, 0, final=True)) is first.reply
    assert told(one, Ticket(first.slot, 0, 0)) is first.reply
    assert told(one, Ticket(first.slot, 0, 1)).outcome is Outcome.STALE
    assert told(one, Ticket(-1, 0, 0)).outcome is Outcome.OK  # its place is free


@pytest.mark.parametrize("command", ["exit", "submit", "die", "raise", "quit", "nothing", "nan"])
def test_what_ends_a_session_frees_its_place(registry, world, command) -> None:
    one = registry(size=1)
    first = ask(one, Ticket(-1, 0, 0), command)
    assert first.reply is not None
    if command in ("exit", "submit"):
        assert first.reply.event == command
    else:
        assert first.reply.outcome is (Outcome.DEAD if command == "die" else Outcome.FAULT)
        assert first.reply.detail and (command == "die" or first.reply.error is not None)
    assert told(one, Ticket(first.slot, 0, 0), command) is first.reply
    assert told(one, Ticket(first.slot, 0, 1)).outcome is Outcome.STALE
    assert world.living == [] and one._pool._held == 0
    assert told(one, Ticket(first.slot, 1, 0)).obs == b"0"


def test_where_all_are_taken_it_says_so_until_some_are_let_go_of(registry: Make, world: World) -> None:
    one = registry(size=2)
    called = one.call([Ticket(-1, 0, 0)] * 3, [b"count"] * 3)
    outcomes = sorted(c.reply.outcome for c in called if c.reply is not None)
    assert outcomes == [Outcome.OK, Outcome.OK, Outcome.EXHAUSTED]
    told_last = told(one, Ticket(-1, 0, 0))
    assert told_last.outcome is Outcome.EXHAUSTED and "release" in told_last.detail
    held = next(c.slot for c in called if c.reply is not None and c.reply.outcome is Outcome.OK)
    one.release([held, 12345])
    assert len(world.living) == 1 and told(one, Ticket(-1, 0, 0)).outcome is Outcome.OK
    assert told(one, Ticket(held, 0, 1)).outcome is Outcome.STALE
    one.release()
    assert world.living == [] and one._pool._held == 0


def test_what_is_not_ready_at_the_deadline_is_collected_by_the_same_call(registry: Make, world: World) -> None:
    one = registry()
    slow, quick = one.call([Ticket(-1, 0, 0)] * 2, [b"wait", b"count"], deadline_s=2.0)
    assert slow.reply is None and slow.slot >= 0 and quick.reply is not None
    assert ask(one, Ticket(slow.slot, 0, 0), "wait", deadline_s=0.0).reply is None
    assert told(one, Ticket(slow.slot, 0, 0), "other", deadline_s=0.0).outcome is Outcome.FORKED
    assert told(one, Ticket(slow.slot, 0, 1), deadline_s=0.0).outcome is Outcome.BUSY
    world.gate.set()
    assert told(one, Ticket(slow.slot, 0, 0), "wait").obs == b"waited"
    assert world.count("wait") == 1
    assert told(one, Ticket(slow.slot, 0, 1)).obs == b"1"


def test_release_while_a_session_starts_ends_it_as_soon_as_it_is_there(registry: Make, world: World) -> None:
    world.starting = threading.Event()
    one = registry()
    slot = ask(one, Ticket(-1, 0, 0), deadline_s=0.01).slot
    until(lambda: world.starts == 1)
    one.release([slot])
    world.starting.set()
    until(lambda: bool(world.sessions[0].kills))
    until(lambda: one._pool._held == 0)
    assert world.ran == []


def test_two_rows_with_one_ticket_run_it_once(registry: Make, world: World) -> None:
    one = registry()
    slot = ask(one, Ticket(-1, 0, 0)).slot
    both = one.call([Ticket(slot, 0, 1)] * 2, [b"count", b"count"])
    assert [c.reply.obs for c in both if c.reply] == [b"1", b"1"]
    forked = one.call([Ticket(slot, 0, 2)] * 2, [b"count", b"echo"])
    assert [c.reply.outcome for c in forked if c.reply] == [Outcome.OK, Outcome.FORKED]
    assert len(world.ran) == 3
    new = one.call([Ticket(-1, 0, 0)] * 2, [b"count", b"count"])  # without a slot they are strangers
    assert new[0].slot != new[1].slot


def test_the_rows_of_a_call_run_at_the_same_time(registry: Make, world: World) -> None:
    world.barrier = threading.Barrier(8)
    called = registry(starts_at_once=8).call([Ticket(-1, 0, 0)] * 8, [b"meet"] * 8)
    assert [c.reply.obs for c in called if c.reply] == [b"met"] * 8


def test_many_threads_and_many_rows_lose_nothing(registry: Make, world: World) -> None:
    one = registry(size=100, spares=3, starts_at_once=16)
    lost: list[str] = []

    def rows() -> None:
        slots, generation = [-1] * 10, 0
        for turn in range(6):
            tickets = [Ticket(slot, generation, turn % 3, final=turn == 5) for slot in slots]
            called = one.call(tickets, [b"count"] * 10)
            slots = [c.slot for c in called]
            lost.extend(repr(c) for c in called if c.reply is None or c.reply.obs != b"%d" % (turn % 3))
            generation += turn == 2

    threads = [threading.Thread(target=rows) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert lost == []  # also where a row begins anew while all places are taken: its own is free
    assert len(world.ran) == 600 and len({s for s, *_ in world.ran}) == 200
    until(lambda: one._pool._held == 3)


def test_starts_are_tried_again(registry: Make, world: World) -> None:
    world.start = lambda number: None if number == 0 else Outcome.START_FAILED if number == 1 else Outcome.OK
    one = registry(attempts=3)
    assert told(one, Ticket(-1, 0, 0, seed=11)).obs == b"0"
    assert [s.seeds for s in world.sessions] == [[], [], [11]] and [s.kills for s in world.sessions] == [1, 1, 0]
    assert one._pool._held == 1


def test_where_no_start_succeeds_the_row_is_told_and_the_place_is_free(registry: Make, world: World) -> None:
    world.start = lambda number: None
    one = registry(attempts=2, size=1)
    first = ask(one, Ticket(-1, 0, 0))
    assert first.reply is not None and first.reply.outcome is Outcome.START_FAILED
    assert "2 attempts" in first.reply.detail and "OSError: no engine" in first.reply.detail
    assert len(world.sessions) == 2 and one._pool._held == 0
    world.start = lambda number: Outcome.OK
    assert told(one, Ticket(first.slot, 0, 0)) is first.reply  # what was told stays told
    assert told(one, Ticket(first.slot, 0, 1)).outcome is Outcome.STALE  # its first command was never run
    assert told(one, Ticket(first.slot, 1, 0)).obs == b"0"


def test_a_maker_that_raises_or_exits_is_a_start_that_failed() -> None:
    def make():
        raise SystemExit(1)

    pool = SessionPool(make, attempts=2, backoff_s=0.001)
    with pytest.raises(NoSessionError, match="SystemExit") as caught:
        pool.take(0)
    assert caught.value.reply.outcome is Outcome.START_FAILED and pool._held == 0
    pool.close()


def test_only_so_many_start_at_once(registry: Make, world: World) -> None:
    world.starting = threading.Event()
    one = registry(starts_at_once=2)
    one.call([Ticket(-1, 0, 0)] * 6, [b"count"] * 6, deadline_s=0.05)
    world.starting.set()
    assert [c.reply.outcome for c in one.call([Ticket(i, 0, 0) for i in range(6)], [b"count"] * 6) if c.reply] == [
        0
    ] * 6
    assert world.at_once <= 2


def test_spares_are_made_ahead_and_with_a_seed_are_reset_ahead(registry: Make, world: World) -> None:
    one = registry(spares=2, size=4, seed=5)
    until(lambda: len(one._pool._spares) == 2)
    assert [s.seeds for s in world.sessions] == [[5], [5]]
    assert told(one, Ticket(-1, 0, 0, seed=77), "seed").obs == b"5"
    until(lambda: len(one._pool._spares) == 2)
    assert len(world.sessions) == 3 and sum(len(s.seeds) for s in world.sessions) == 3


def test_spares_without_a_seed_are_reset_with_the_rows_own(registry: Make, world: World) -> None:
    one = registry(spares=1, size=2)
    until(lambda: len(one._pool._spares) == 1)
    assert world.living == []
    assert told(one, Ticket(-1, 0, 0, seed=77), "seed").obs == b"77"


def test_a_spare_that_is_on_its_way_is_waited_for(registry: Make, world: World) -> None:
    world.starting = threading.Event()
    one = registry(spares=1, size=2, seed=0)
    until(lambda: world.starts == 1)  # the spare
    calls = one.call([Ticket(-1, 0, 0)] * 2, [b"count"] * 2, deadline_s=0.05)
    assert [c.reply for c in calls] == [None, None]
    world.starting.set()
    assert [told(one, Ticket(c.slot, 0, 0)).obs for c in calls] == [b"0", b"0"]
    assert told(one, Ticket(-1, 0, 0)).outcome is Outcome.EXHAUSTED


def test_spares_that_do_not_start_hold_no_places(registry: Make, world: World) -> None:
    world.start = lambda number: Outcome.START_FAILED
    one = registry(spares=1, size=2, seed=0, attempts=1)
    until(lambda: one._pool._coming == 0 and one._pool._held == 0)
    world.start = lambda number: Outcome.OK
    assert [told(one, Ticket(-1, 0, 0)).outcome for _ in range(2)] == [Outcome.OK] * 2


def test_close_answers_what_runs_with_dead_and_takes_no_more(registry: Make, world: World) -> None:
    one = registry()
    slots = [c.slot for c in one.call([Ticket(-1, 0, 0)] * 3, [b"hang", b"hang", b"count"], deadline_s=1.0)]
    until(lambda: world.count("hang") == 2)
    waiting: list[Called] = []
    thread = threading.Thread(target=lambda: waiting.extend(one.call([Ticket(slots[0], 0, 0)], [b"hang"])))
    thread.start()
    time.sleep(0.05)
    one.close()
    one.close()
    thread.join(LONG)
    assert waiting[0].reply is not None and waiting[0].reply.outcome is Outcome.DEAD
    assert world.living == []
    later = ask(one, Ticket(-1, 0, 0))
    assert later.reply is not None and later.reply.outcome is Outcome.EXHAUSTED and "closed" in later.reply.detail


def test_close_while_a_session_starts_leaves_none_behind(registry: Make, world: World) -> None:
    world.starting = threading.Event()
    one = registry(spares=1, seed=0)
    called = ask(one, Ticket(-1, 0, 0), deadline_s=0.01)
    assert called.reply is None
    until(lambda: world.starts == 2)
    future = one._episodes[called.slot].future
    assert future is not None
    one.close()
    world.starting.set()  # it is up after it was killed
    assert future.result(LONG).outcome in (Outcome.START_FAILED, Outcome.EXHAUSTED, Outcome.DEAD)
    until(lambda: world.living == [])
    until(lambda: all(session.seeds for session in world.sessions))
    until(lambda: world.living == [])


@pytest.mark.parametrize(
    "options", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"idle_s": -1}, {"max_bytes": 0}, {"size": 0},
                {"spares": -1}, {"size": 2, "spares": 2}, {"attempts": 0}, {"starts_at_once": True}],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}|spares"):
        Registry(World().make, **options)


def test_the_crew_runs_as_many_at_once_as_it_has_threads_and_hands_on_exceptions() -> None:
    crew = Crew(3, "test")
    barrier = threading.Barrier(3)
    futures = [crew.submit(barrier.wait, LONG) for _ in range(3)]
    assert sorted(f.result(LONG) for f in futures) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        crew.submit(lambda: 1 / 0).result(LONG)
    with pytest.raises(SystemExit):
        crew.submit(sys.exit).result(LONG)
    assert [crew.submit(pow, 2, i).result(LONG) for i in range(50)] == [2**i for i in range(50)]
    assert crew._threads <= 3
    last = crew.submit(pow, 3, 3)
    crew.close()
    crew.close()
    assert last.result(LONG) == 27
    with pytest.raises(RuntimeError, match="closed"):
        crew.submit(pow, 1, 1)


def test_what_is_open_at_the_end_is_closed_and_faults_of_one_keep_none_open() -> None:
    class Thing:
        times = 0

        def close(self) -> None:
            self.times += 1
            raise OSError("as it is")

    things = [Thing(), Thing(), Thing()]
    for thing in things:
        close_at_end(thing)
    closed(things[0])
    close_all()
    close_all()
    assert [thing.times for thing in things] == [0, 1, 1]


PROGRAM = """
import atexit, os, signal, sys, time
last = []
atexit.register(lambda: [function() for function in last])  # registered first, run last
from statelesschat.host.registry import Registry, Ticket
from statelesschat.host.session import Outcome
from tests.host.fake import World, until

world = World()
{before}
registry = Registry(world.make)
(called,) = registry.call([Ticket(-1, 0, 0)], [b"hang"], deadline_s=0.01)
until(lambda: world.count("hang") == 1)
def kills():
    print("killed", [s.kills > 0 for s in world.sessions], flush=True)  # perhaps by two at once
{after}
"""


def program(before: str, after: str) -> subprocess.CompletedProcess[str]:
    source = PROGRAM.format(before=textwrap.dedent(before), after=textwrap.dedent(after))
    return subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=LONG / 2, check=False
    )


def test_a_program_ends_although_a_command_hangs() -> None:
    done = program("", "last.append(kills)")
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("killed [True]\n", "")


def test_a_program_ends_although_a_command_takes_no_notice_of_being_killed() -> None:
    done = program("", "registry.call([Ticket(-1, 0, 0)], [b'sleep 60'], deadline_s=0.01)")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exception_ends_it_as_well() -> None:
    done = program("", "last.append(kills); raise KeyError('of the program')")
    assert done.returncode == 1 and "KeyError: 'of the program'" in done.stderr
    assert done.stdout == "killed [True]\n"


def test_sigterm_closes_sessions_and_then_does_what_it_did_before() -> None:
    done = program(
        "signal.signal(signal.SIGTERM, lambda number, frame: (kills(), sys.exit(7)))",
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout == "killed [True]\n"


def test_sigterm_without_a_handler_ends_the_program() -> None:
    closes = "real = registry.close\nregistry.close = lambda: (real(), kills())"
    done = program("", closes + "\nos.kill(os.getpid(), signal.SIGTERM); time.sleep(60)")
    assert done.returncode == -15, done.stderr
    assert done.stdout == "killed [True]\n"


def test_sigterm_that_is_ignored_stays_ignored() -> None:
    done = program("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "os.kill(os.getpid(), signal.SIGTERM); kills()")
    assert done.returncode == 0 and done.stdout == "killed [False]\n"


def test_a_signal_that_comes_while_the_registry_is_at_work_does_not_hang() -> None:
    after = """
    with registry._lock, registry._pool._lock, registry._crew._lock:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    """
    done = program("signal.signal(signal.SIGTERM, lambda number, frame: (kills(), sys.exit(7)))", after)
    assert done.returncode == 7, done.stderr
    assert done.stdout == "killed [True]\n"
