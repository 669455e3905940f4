"""Commands that get in the way of the shell they run in, by accident or not."""

import time

import pytest

from statelesschat.host.sandbox import IsolationError
from statelesschat.host.session import Outcome
from statelesschat.host.shell import ShellSession
from tests.host.conformance import begun, output, run


@pytest.fixture(params=["bubblewrap", "none"])
def session(request):
    try:
        session = ShellSession(isolation=request.param)
    except IsolationError as error:
        pytest.skip(str(error))
    with begun(session):
        yield session


@pytest.mark.parametrize(
    "command",
    [
        "printf() { :; }; eval() { :; }; builtin() { :; }; echo() { :; }; unset -f echo",
        "alias printf=x eval=x builtin=x '{=x' '[[=x' if=x exec=x unset=x trap=x",
        "enable -n eval builtin trap",
        "unset -f eval; unset PWD OLDPWD",
        "PROMPT_COMMAND='echo noise; cat'; PS1='$(cat)'; PS0='$(cat)'; PS4=x; TMOUT=1",
        "PROMPT_COMMAND=(cat cat)",
        "readonly PWD",
        "set -u; set -o pipefail; set -f",
        "set -e; true",
        "set -v; set +v",
        "set -n",
        "set -o posix",
        "IFS=; LC_ALL=xx_XX; PATH=$PATH:/x",
        "exec >/dev/null; echo lost",
        "exec 2>&1 </etc/passwd",
        "exec 8>&1; exec 9>&1; exec 8>&-; exec 9>&-",
        "exec 10>&1; exec 20>&1 200>&1",
        "trap '' INT TERM HUP QUIT",
        "trap 'echo exit' EXIT",
        "shopt -s extdebug nullglob failglob dotglob lastpipe; shopt -u expand_aliases; shopt -s expand_aliases",
        "return 3; break; continue",
        "kill -INT $$; echo never",
        "kill -INT 0; echo never",
        "sh -c 'kill -INT $$'",
        "sh -c 'kill -SEGV $$'",
        "sh -c 'kill -9 $$'",
        "history; fc -l; suspend; logout; fg; bg",
        "ulimit -n 64",
        "cd /nowhere; cd ''; cd /; false",
        "f() { f; }; (ulimit -s 1024; f) 2>/dev/null",
    ],
)
def test_shell_tricks(session, command):
    reply = run(session, command)
    assert reply.outcome is Outcome.OK, reply
    assert b"tcsetattr" not in reply.obs and b"__rc" not in reply.obs
    for _ in range(2):
        assert output(session, "echo \"next\" >&2; sh -c 'echo more'") == b"next\nmore\n"
    assert run(session, "while :; do :; done", timeout_s=0.1).outcome is Outcome.TIMEOUT
    assert output(session, "echo last") == b"last\n"


@pytest.mark.parametrize(
    "command",
    [
        "read x <&10; read y <&10",
        "cat <&10",
        "cat /proc/$$/fd/10",
        "(cat <&10) & sleep 0.1",
        "for fd in /proc/$$/fd/*; do (echo 'nabc: 0 / nabc' >$fd) 2>/dev/null & done; wait",
        "for fd in 10 11 12 13 14 15; do (head -c 300000 /dev/urandom >&$fd) 2>/dev/null & done; sleep 0.2",
        "exec 10>&- 11>&- 12>&- 13>&- 14>&-",
        "exec 13>/dev/null",
        "readonly __rc __cwd",
        "readonly PS1",
        "eval() { :; }; readonly -f eval",
        "unset() { :; }; builtin() { :; }; enable() { :; }; eval() { exit; }",
        "trap 'read x' DEBUG; set -T",
        "trap 'echo caught' INT; while :; do :; done",
        "trap '' INT; while :; do :; done",
        "while :; do sh -c 'trap \"\" INT; sleep 0.2'; done",
        "set -r",
        "exec bash",
        "PWD=$(printf 'x%.0s' {1..100000})",
        "unset PATH; PWD='a\nb'",
        "gdb -p $$ -batch 2>/dev/null",
        "kill -STOP $$ & wait",
    ],
)
def test_what_a_command_can_break_is_its_own_session(command):
    with begun(ShellSession(isolation="none")) as session, begun(ShellSession(isolation="none")) as other:
        begin = time.monotonic()
        for each in (command, "echo a", "echo b"):
            reply = run(session, each, timeout_s=0.4)
            assert reply.outcome in (Outcome.OK, Outcome.TIMEOUT, Outcome.DEAD)
        assert time.monotonic() - begin < 30
        assert output(other, "echo well") == b"well\n"
        assert session.reset(0).outcome is Outcome.OK
        assert output(session, "echo well") == b"well\n"


def test_failing_under_errexit_ends_the_session_once(session):
    assert run(session, "set -e; false; echo never").event == "exit"
    session.reset(0)
    assert run(session, "set -e").outcome is Outcome.OK
    assert run(session, "false").rc == 1
