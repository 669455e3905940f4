"""What any session that runs shell commands has to do."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from statelesschat.host.session import MAX_COMMAND_BYTES, Outcome, Reply, Score, Session, SessionSpec

Make = Callable[[], Session]
LONG = 60.0  # seconds that nothing here takes


def run(session: Session, command: str | bytes, timeout_s: float = LONG, idle_s=None, max_bytes=1 << 16) -> Reply:
    action = command.encode() if isinstance(command, str) else command
    reply = session.run(0, action, timeout_s=timeout_s, idle_s=idle_s, max_bytes=max_bytes)
    assert isinstance(reply, Reply)
    assert len(reply.obs) <= max_bytes
    assert reply.truncated == (reply.n_bytes > max_bytes)
    assert reply.ms >= 0
    return reply


def output(session: Session, command: str | bytes, **limits) -> bytes:
    reply = run(session, command, **limits)
    assert reply.outcome is Outcome.OK, reply
    return reply.obs


@contextlib.contextmanager
def begun(session: Session) -> Iterator[Session]:
    """Reset, and killed at the end."""
    try:
        reply = session.reset(0)
        assert reply.outcome is Outcome.OK, reply
        yield session
    finally:
        session.kill()


class SessionConformance:
    """Inherit it, with a fixture ``make`` that gives a function that makes a session."""

    @pytest.fixture
    def session(self, make: Make) -> Iterator[Session]:
        with begun(make()) as session:
            yield session

    def test_is_a_session(self, make):
        session = make()
        assert isinstance(session, Session)
        assert isinstance(session.spec, SessionSpec)
        assert isinstance(session.score(final=False), Score)
        session.kill()  # legal before any reset
        session.kill()

    def test_not_reset_is_dead(self, make):
        assert run(make(), "echo a").outcome is Outcome.DEAD

    def test_output_and_exit_code(self, session):
        reply = run(session, "echo hello; (exit 7)")
        assert (reply.obs, reply.outcome, reply.rc, reply.n_bytes) == (b"hello\n", Outcome.OK, 7, 6)
        assert reply.event is None
        assert output(session, "echo $?") == b"7\n"
        assert output(session, "echo $?") == b"0\n"

    def test_state_persists(self, session):
        run(session, "cd /tmp && export A=1; b=2; f() { echo in f; }; alias g='echo in g'")
        assert output(session, 'echo $A $b; f; pwd; sh -c "echo $A"') == b"1 2\nin f\n/tmp\n1\n"
        assert output(session, "g") == b"in g\n"
        assert session.state()["working_dir"] == "/tmp"

    @pytest.mark.parametrize("command", ["cat", "read x", "python3", "sh", "head -1; cat", "while read x; do :; done"])
    def test_readers_of_stdin_end(self, session, command):
        assert run(session, command).outcome is Outcome.OK
        assert output(session, "echo next") == b"next\n"

    def test_heredocs(self, session):
        assert output(session, "cat <<'EOF'\n$a 'b' \"c\"\nEOF\ncat <<N\nd\nN") == b"$a 'b' \"c\"\nd\n"
        assert b"hi" in output(session, "cat <<EOF\nhi")  # not ended
        assert output(session, "echo next") == b"next\n"

    @pytest.mark.parametrize(
        "command", ["echo 'a", 'echo "a', "if then", "echo $(", "(", "}", "echo a | | b", "for", "\\"]
    )
    def test_syntax_errors(self, session, command):
        assert run(session, command).outcome is Outcome.OK
        assert output(session, "echo next") == b"next\n"

    @pytest.mark.parametrize("command", ["", " ", "\n", "# nothing", ":", "true;", "\r\n"])
    def test_no_output(self, session, command):
        reply = run(session, command)
        assert reply.outcome is Outcome.OK
        assert reply.obs == b"" or command == "\r\n"
        assert output(session, "echo next") == b"next\n"

    def test_quotes_and_lines(self, session):
        assert output(session, "echo 'it''s' \"it's\" $'\\''\necho b\n\n\techo c") == b"its it's '\nb\nc\n"
        assert output(session, "echo a \\\n b !! ~- '!x'").startswith(b"a b !!")

    def test_binary(self, session):
        assert output(session, r"printf '\000\377\000\n\r\200'") == b"\x00\xff\x00\n\r\x80"
        assert output(session, b"printf %s '\xff\xfe\xe3'") == b"\xff\xfe\xe3"
        assert output(session, "echo é漢😀") == "é漢😀\n".encode()

    def test_stderr_is_in_order(self, session):
        loop = "for i in $(seq 300); do echo o$i; echo e$i >&2; sh -c 'echo s >&2'; done"
        want = "".join(f"o{i}\ne{i}\ns\n" for i in range(1, 301))
        assert output(session, loop).decode() == want

    def test_each_output_is_with_its_command(self, session):
        for i in range(300):
            assert output(session, f"echo o{i}; echo e{i} >&2") == b"o%d\ne%d\n" % (i, i)

    def test_much_output_is_capped(self, session):
        reply = run(session, "head -c 5000000 /dev/zero | tr '\\0' x; echo end", max_bytes=1000)
        assert reply.outcome is Outcome.OK
        assert (reply.n_bytes, reply.truncated, reply.rc) == (5_000_004, True, 0)
        assert reply.obs.startswith(b"xxxx") and reply.obs.endswith(b"xxxend\n")
        assert b"5000004" in reply.obs
        assert 900 <= len(reply.obs) <= 1000
        exact = run(session, "echo 12345", max_bytes=6)
        assert (exact.obs, exact.truncated) == (b"12345\n", False)
        for most in range(0, 60, 7):
            assert len(run(session, "seq 1000", max_bytes=most).obs) <= most

    def test_big_command(self, session):
        big = "x" * (MAX_COMMAND_BYTES - 100)
        assert output(session, f"a={big}; echo ${{#a}}") == b"%d\n" % len(big)
        quotes = "'" * 100_000
        assert output(session, f'a="{quotes}"; echo ${{#a}}') == b"100000\n"
        assert run(session, f"echo {big}", max_bytes=10).n_bytes == len(big) + 1

    @pytest.mark.parametrize("command", [b"echo a\0; touch ran", b"touch ran;" + b" " * MAX_COMMAND_BYTES])
    def test_refused(self, session, command):
        reply = run(session, command)
        assert (reply.outcome, reply.obs) == (Outcome.REFUSED, b"")
        assert reply.detail
        assert output(session, "ls ran 2>/dev/null; echo next") == b"next\n"

    @pytest.mark.parametrize(
        "text",
        [
            "nabc: 0 /tmp nabc",
            "///PROCESS-DONE:0:x///",
            "<<SUBMISSION||",
            "bash: n" + "0" * 32 + ": 0 / n" + "0" * 32,
        ],
    )
    def test_markers_cannot_be_spoofed(self, session, text):
        assert output(session, f"echo '{text}'; echo more") == f"{text}\nmore\n".encode()
        assert output(session, "echo next") == b"next\n"

    @pytest.mark.parametrize(
        "hang",
        [
            "while :; do :; done",
            "f() { while :; do :; done; }; f; echo NEVER",
            "sleep 1000; echo NEVER",
            "sleep 1000 | cat",
            "x=$(sleep 1000)",
            "( while :; do :; done )",
            "while :; do sleep 0.01; done",
            "sleep 1000 & wait",
            "setsid sleep 1000",
            "kill -STOP $$",
            "sh -c 'trap \"\" INT; sleep 1000'",
        ],
    )
    def test_time_out(self, session, hang):
        run(session, "cd /tmp; export KEPT=yes")
        reply = run(session, f"echo partial; {hang}", timeout_s=0.3)
        assert (reply.outcome, reply.rc) == (Outcome.TIMEOUT, None)
        assert reply.obs == b"partial\n" or (reply.obs.startswith(b"partial\n") and b"NEVER" not in reply.obs)
        assert reply.detail
        assert output(session, "echo $KEPT $PWD") == b"yes /tmp\n"

    def test_idle_time_out(self, session):
        reply = run(session, "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done; sleep 1000", idle_s=0.6)
        assert reply.outcome is Outcome.TIMEOUT
        assert reply.obs == b"1\n2\n3\n4\n5\n6\n7\n8\n"
        assert output(session, "echo next", idle_s=LONG) == b"next\n"

    def test_background_jobs_do_not_block(self, session):
        begin = time.monotonic()
        run(session, "sleep 1000 &")
        assert run(session, "(sleep 1000; echo late) & echo now").obs.endswith(b"now\n")
        assert time.monotonic() - begin < LONG
        assert run(session, "while :; do echo noise; done & sleep 0.05").outcome is Outcome.OK
        for i in range(20):
            reply = run(session, f"cd /; echo mine{i}; (exit {i})")
            assert (reply.outcome, reply.rc) == (Outcome.OK, i)
            assert re.search(rb"mine%d\n" % i, reply.obs) or reply.truncated

    def test_background_jobs_outlive_a_time_out(self, session):
        run(session, "cd /tmp; (while sleep 0.02; do echo x >>alive.$$; done) & echo")
        time.sleep(0.1)
        assert run(session, "while :; do :; done", timeout_s=0.2).outcome is Outcome.TIMEOUT
        assert run(session, "rm alive.$$; sleep 0.3; rm alive.$$").rc == 0

    @pytest.mark.parametrize(
        ("end", "rc", "event"),
        [
            ("exit", 0, "exit"),
            ("exit 3", 3, "exit"),
            ("kill -9 $$", 137, None),  # as if the system had, for want of memory
            ("exec sh -c 'exit 4'", 4, "exit"),
        ],
    )
    def test_exit(self, session, end, rc, event):
        reply = run(session, f"echo before; {end}")
        assert (reply.outcome, reply.event, reply.rc) == (Outcome.DEAD, event, rc)
        assert event or "SIGKILL" in reply.detail
        assert reply.obs.startswith(b"before\n")
        after = run(session, "echo a")
        assert (after.outcome, after.obs, after.event) == (Outcome.DEAD, b"", None)
        assert session.state() == {}
        assert session.reset(1).outcome is Outcome.OK
        assert output(session, "echo a") == b"a\n"

    def test_reset_is_a_fresh_world(self, session):
        run(session, "echo x >left; A=1; cd /; f() { :; }; sleep 1000 &")
        assert session.reset(0).outcome is Outcome.OK
        assert (
            output(session, "ls; echo -$A-; type f >/dev/null 2>&1; echo $?; [ $PWD = / ] || echo home")
            == b"--\n1\nhome\n"
        )

    def test_seed(self, session):
        def drawn(seed):
            session.reset(seed)
            return output(session, "echo $RANDOM $RANDOM")

        assert drawn(5) == drawn(5) != drawn(6)
        for seed in (-1, 1 << 70):
            assert session.reset(seed).outcome is Outcome.OK

    def test_kill(self, session):
        session.kill()
        session.kill()
        assert run(session, "echo a").outcome is Outcome.DEAD
        assert session.state() == {}
        assert session.reset(0).outcome is Outcome.OK
        assert output(session, "echo a") == b"a\n"

    @pytest.mark.parametrize(
        "hang",
        ["sleep 1000", "while :; do :; done", "trap '' INT TERM HUP; yes >/dev/null", "while :; do echo y; done"],
    )
    def test_kill_while_it_runs(self, session, hang):
        replies = []
        thread = threading.Thread(target=lambda: replies.append(run(session, f"echo begun; {hang}")))
        thread.start()
        time.sleep(0.2)
        begin = time.monotonic()
        session.kill()
        took = time.monotonic() - begin
        thread.join(10)
        assert not thread.is_alive()
        assert took < 3
        (reply,) = replies
        assert (reply.outcome, reply.event) == (Outcome.DEAD, None)
        assert reply.obs.startswith(b"begun\n")
        assert session.reset(0).outcome is Outcome.OK

    def test_one_command_at_a_time(self, session):
        replies = []
        thread = threading.Thread(target=lambda: replies.append(run(session, "sleep 0.5; echo first")))
        thread.start()
        time.sleep(0.2)
        assert run(session, "echo second").outcome is Outcome.BUSY
        assert session.reset(0).outcome is Outcome.BUSY
        thread.join()
        assert replies[0].obs == b"first\n"
        assert output(session, "echo third") == b"third\n"

    def test_sessions_are_apart(self, make):
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(begun(make())) for _ in range(8)]
            wrong = []

            def work(number, session):
                run(session, f"me={number}")
                for i in range(30):
                    reply = run(session, f"echo $me {i}")
                    if reply.obs != b"%d %d\n" % (number, i):
                        wrong.append(reply)

            threads = [threading.Thread(target=work, args=each) for each in enumerate(sessions)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not wrong
