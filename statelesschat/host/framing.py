"""What bash is sent to run a command, and how what it says afterwards is told from anything else.

A command is run by ``eval``, with ``/dev/null`` for its stdin, the output pipe for stdout and stderr, and without the
pipes that bash is spoken to through. What follows on its line sends a *frame* through the status pipe: exit code and
working directory between two copies of a random name. A second frame is asked for on a line of its own: it comes if a
command interrupts bash, which then drops the rest of the first.

A frame is written by an expansion that fails, ``${name:?word}``: unlike ``printf`` it cannot be redefined. A command
that finds the name in the memory of bash deceives its own session, once: the next command has another name.
"""

import re
import secrets

# A function with the name of a builtin is found first, a builtin may be disabled, and a backslash keeps aliases out.
_HEALED = (
    rb"\enable builtin eval trap unset set; \unset -f builtin; "
    rb"\builtin unset -f unset eval trap set builtin; \builtin trap - INT; "
)
_REDIRECTED = b" </dev/null >&9 2>&9 8>&- 9>&-; "
# What prompts and time limits a command has set would run before the next line is read, and could swallow it.
_FRAME = (
    b"__rc=$? __cwd=${PWD-} PROMPT_COMMAND=() PS0= PS1= PS2= TMOUT=; \\builtin set +e; "
    b"(( ${%b:?$__rc ${__cwd:0:4096} %b} )) 2>&8\n"
)
MOST = 1 << 14  # bytes of a frame, and of another before it


def new_name() -> bytes:
    """A name that nothing has had before."""
    return b"n" + secrets.token_hex(16).encode()


def frame(name: bytes) -> bytes:
    """The end of a line, that asks for a frame."""
    return _FRAME % (name, name)


def pattern(*names: bytes) -> re.Pattern[bytes]:
    """Finds the first frame with one of these names; its groups are the name, the exit code, the working directory."""
    return re.compile(rb"(%b): (\d{1,3}) (.*?) \1\n" % b"|".join(names), re.DOTALL)


def command(action: bytes, rc: int) -> bytes:
    """The beginning of a line, that runs a command, which sees ``rc`` in ``$?``."""
    before = b"" if rc == 0 else b"(( 0 )) && (( 1 )); " if rc == 1 else b"(exit %d) && (( 1 )); " % rc
    return b"%b%b\\eval '%b'%b" % (_HEALED, before, action.replace(b"'", b"'\\''"), _REDIRECTED)
