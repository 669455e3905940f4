"""Tools that run in the conversation's sandbox: a shell, and Python."""

import base64
import functools
import time
from typing import Any

from statelesschat.host.session import Outcome, Reply
from statelesschat.host.tool import Context, Result, Tool

_FOLDER = "~/.interpreter"  # the home is the workspace, with isolation and without
_PROCESS = "python of the conversation"  # entry of the memory: whether it runs

# It runs what is in the file, in the same namespace each time; what stands last is shown, as in a notebook.
_DRIVER = r"""
import ast, os, signal, sys, traceback
folder, once = sys.argv[1], len(sys.argv) > 2
space = {"__name__": "__main__", "__builtins__": __builtins__}
busy = False
def interrupted(number, frame):
    global busy
    if busy:
        busy = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupted)
def run():
    global busy
    source = open(folder + "/code", encoding="utf-8", errors="replace").read()
    rc = 0
    try:
        signal.signal(signal.SIGINT, interrupted)
        tree = ast.parse(source, "<input>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        busy = True
        exec(compile(tree, "<input>", "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<input>", "eval"), space)
            if value is not None:
                print(repr(value))
        busy = False
    except SystemExit as error:
        busy = False
        rc = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException as error:
        busy, rc = False, 1
        kept = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
        said = traceback.format_list(kept) + traceback.format_exception_only(type(error), error)
        try:
            sys.stderr.write("".join(said))
        except Exception:
            pass
    signal.signal(signal.SIGINT, interrupted)
    flush()
    return rc
def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
if once:
    sys.exit(run())
null = os.open(os.devnull, os.O_RDWR)
while True:
    open(folder + "/in").close()
    out = os.open(folder + "/out", os.O_WRONLY)
    os.dup2(out, 1); os.dup2(out, 2); os.close(out)
    rc = str(run())
    with open(folder + "/rc.new", "w") as file:
        file.write(rc)
    os.replace(folder + "/rc.new", folder + "/rc")
    os.dup2(null, 1); os.dup2(null, 2)
    flush()
"""

_STOP = (
    f"kill -INT $(<{_FOLDER}/pid); for i in {{1..10}}; do [[ -f {_FOLDER}/rc ]] && break; sleep 0.1; done; "
    f"[[ -f {_FOLDER}/rc ]] || {{ kill -KILL $(<{_FOLDER}/pid); rm {_FOLDER}/pid; (exit 4); }}"
)


def shell_tool(name: str = "shell") -> Tool:
    """Run commands in the conversation's bash: folder, variables and files persist from call to call.

    Args:
        name: as the model calls it. Fenced blocks of ``bash``, ``sh`` and ``shell`` call it too.
    """
    about = "Run a command in a bash shell that persists between calls, and return what it writes."
    spec = _spec(name, about, "command", "The command to run.")
    return Tool(name, spec, _run_shell, ("bash", "sh", "shell"), "bash")


def python_interpreter(name: str = "python", *, persistent: bool = True, command: str = "python3") -> Tool:
    """Run Python in the conversation's sandbox: what it prints, the value of a last expression, or its traceback.

    Args:
        name: as the model calls it. Fenced blocks of ``python`` and ``py`` call it too.
        persistent: variables and imports stay from call to call, in a process of its own; code that times out is
            interrupted, and they still do unless it goes on after that. False: each call is a fresh process.
        command: the interpreter, as the sandbox has it.
    """
    kept = "Variables persist between calls." if persistent else "Each call starts afresh."
    about = f"Run Python code, and return what it prints and the value of its last expression. {kept}"
    spec = _spec(name, about, "code", "The code to run.")
    run = functools.partial(_run_kept if persistent else _run_once, command)
    return Tool(name, spec, run, ("python", "py"), command)


def _spec(name: str, about: str, argument: str, what: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "description": what}},
        "required": [argument],
    }
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _run_shell(context: Context, arguments: dict[str, Any]) -> Result:
    return _told(_bash(context, arguments["command"], context.timeout_s), context.timeout_s)


def _run_once(command: str, context: Context, arguments: dict[str, Any]) -> Result:
    written = _bash(context, _write(arguments["code"]), context.timeout_s)
    if written.rc != 0:
        return _told(written, context.timeout_s)
    return _told(_bash(context, f"{command} {_FOLDER}/driver {_FOLDER} once", context.timeout_s), context.timeout_s)


def _run_kept(command: str, context: Context, arguments: dict[str, Any]) -> Result:
    written = _bash(context, _write(arguments["code"]), context.timeout_s)
    if written.rc != 0:
        return _told(written, context.timeout_s)
    alive = f"[[ -f {_FOLDER}/pid ]] && kill -0 $(<{_FOLDER}/pid) 2>/dev/null"
    start = (
        f"{{ rm -f {_FOLDER}/{{in,out}}; mkfifo {_FOLDER}/{{in,out}}; {command} {_FOLDER}/driver {_FOLDER} "
        f"</dev/null >/dev/null 2>&1 & echo $! >{_FOLDER}/pid; disown; }}"
    )
    lost = ""
    began = _bash(context, f"if {alive}; then exit_code=0; else {start}; exit_code=3; fi; (exit $exit_code)", 10)
    if began.rc == 3 and context.memory.get(_PROCESS):
        lost = "[the interpreter had ended; its variables are gone]\n"
    context.memory[_PROCESS] = True
    reply = _bash(
        context,
        f"rm -f {_FOLDER}/rc; : >{_FOLDER}/in; cat {_FOLDER}/out; (exit $(cat {_FOLDER}/rc 2>/dev/null || echo 1))",
        context.timeout_s,
    )
    if reply.outcome is not Outcome.TIMEOUT:
        told = _told(reply, context.timeout_s)
        return told._replace(content=lost + told.content)
    # The code still runs in the interpreter: it is interrupted, and ended if it goes on.
    ended = _bash(context, _STOP, 10)
    told = _told(reply, context.timeout_s)
    if ended.rc != 0:
        context.memory[_PROCESS] = False
        told = told._replace(content=f"{told.content}\n[the interpreter was started anew; its variables are gone]")
    return told


def _write(code: str) -> str:
    """A command that puts code and driver where they are looked for."""
    encoded = base64.b64encode(code.encode("utf-8", "replace")).decode()
    driver = base64.b64encode(_DRIVER.encode()).decode()
    return (
        f"mkdir -p {_FOLDER} && base64 -d <<<'{encoded}' >{_FOLDER}/code && "
        f"{{ [[ -f {_FOLDER}/driver ]] || base64 -d <<<'{driver}' >{_FOLDER}/driver; }}"
    )


def _bash(context: Context, command: str, timeout_s: float) -> Reply:
    begun = time.monotonic()
    session = context.shell()
    left = max(timeout_s - (time.monotonic() - begun), 0.1)
    action = command.encode("utf-8", "replace")
    reply = session.run(context.row.turn, action, timeout_s=left, idle_s=None, max_bytes=context.max_bytes)
    if reply.outcome is Outcome.DEAD:
        context.lose()
    return reply


def _told(reply: Reply, timeout_s: float) -> Result:
    """What the model is told: output, then what is not as usual."""
    text = reply.obs.decode("utf-8", "backslashreplace")
    notes = []
    if reply.outcome is Outcome.TIMEOUT:
        notes.append(f"[stopped after {timeout_s:g} s]")
    elif reply.event == "exit":
        notes.append("[the shell has ended; the next call starts another]")
    elif reply.outcome is not Outcome.OK:
        notes.append(f"[not run: {reply.detail}]")
    elif reply.rc:
        notes.append(f"[exit code {reply.rc}]")
    if reply.outcome is Outcome.DEAD and reply.event is None:
        raise RuntimeError(reply.detail)
    if notes and text and not text.endswith("\n"):
        text += "\n"
    return Result(text + "\n".join(notes), outcome=reply.outcome)
