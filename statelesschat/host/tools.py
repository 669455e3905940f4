"""Environments with tools: what an answer calls is run on the host, and its results are what is said next."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from statelesschat.envs.env import Env
from statelesschat.host.environment import with_session
from statelesschat.host.registry import Registry
from statelesschat.host.session import Outcome, Reply
from statelesschat.host.shell import ShellSession
from statelesschat.host.tool import Tool, as_tool
from statelesschat.host.tool_calls import FORMATS, find_calls
from statelesschat.host.toolbox import Toolbox
from statelesschat.text.codec import Codec


def with_tool(
    env: Env,
    codec: Codec,
    *tools: Any,
    formats: Sequence[str] | None = None,
    role: Any = None,
    max_calls: int = 4,
    call_timeout_s: float = 30.0,
    timeout_s: float | None = None,
    deadline_s: float | None = None,
    stop: bool = True,
    max_bytes: int = 16384,
    shell: Callable[[], ShellSession] = ShellSession,
    size: int = 1024,
    response_len: int | None = None,
) -> tuple[Env, Registry]:
    r"""Run the tools that an answer calls; each result is a message, and then the model answers again.

    An answer without calls ends the episode. Every conversation has tools of its own: what a shell or an interpreter
    keeps is seen by no other, not by repeats of the same prompt either. What a model can do wrong (an unknown tool,
    arguments that are no JSON, code that hangs) is told to it in the result, and the batch goes on.

    Args:
        env: what it wraps.
        codec: of the environment's config; give ``make_config(tools=[as_tool(t).spec for t in tools])`` the same tools,
            and the template tells the model of them.
        *tools: functions, `Tool` objects, `shell_tool()`, `python_interpreter()`. A function that gives `Result` can
            reward the turn and end the episode; one with a parameter annotated `Row` knows who asks.
        formats: of `find_calls`: ``"template"``, ``"xml"``, ``"fence"``, tried in this order. By default the template's
            own, or the other two where it has none.
        role: who says the results, by default ``"tool"`` where calls are the template's own, else ``"user"``.
        max_calls: the most calls in an answer; each has room for a message of ``max_message_len``.
        call_timeout_s: seconds for each call.
        timeout_s: seconds for all calls of an answer, by default ``max_calls`` times as much.
        deadline_s: seconds until a step goes on without the rows that are not ready, as `with_session` has it.
        stop: False: an answer without calls is followed by nothing, and ends nothing: what is further out may reply.
        max_bytes: of each result.
        shell: makes the sandbox of a conversation whose tools need one.
        size: conversations at once.
        response_len: as `with_session` has it.

    Returns:
        The environment, and the registry that runs its tools: close it, or use it as a context manager.

    Example:
        >>> import jax, statelesschat as sc
        >>> from statelesschat.host import with_tool
        >>> def add(a: int, b: int) -> int:
        ...     '''Add two numbers.
        ...
        ...     Args:
        ...         a: One number.
        ...         b: Another.
        ...     '''
        ...     return a + b
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=512, max_messages=8, max_message_len=96, max_turns=4)
        >>> codec = sc.Codec(tokenizer, config)
        >>> env, registry = with_tool(sc.chat_env(config), codec, add, formats=["xml"])
        >>> answers = ['<tool name="add">{"a": 2, "b": 3}</tool>', '<tool name="sub">{}</tool>']
        >>> with registry:
        ...     states = sc.begin(env, codec.encode(["2+3?", "3-2?"]), jax.random.key(0))
        ...     states = jax.jit(jax.vmap(env.step))(states, codec.encode_actions(answers))
        >>> [history[-1]["content"] for history in codec.decode_history(states)]
        ['5', "error: there is no tool 'sub'; there are add"]
    """
    made = [as_tool(tool) for tool in tools]
    chosen = _formats(codec, formats)
    _check(made, chosen, max_calls, call_timeout_s, shell)
    find = partial(find_calls, codec, made, chosen)
    toolbox = partial(Toolbox, made, find, shell, most=max_calls, stop=stop, call_timeout_s=call_timeout_s)
    whole = max_calls * call_timeout_s if timeout_s is None else timeout_s
    registry = Registry(toolbox, timeout_s=whole, max_bytes=max_bytes, size=size, attempts=1)
    try:
        wrapped = with_session(
            env,
            codec,
            registry,
            role=("tool" if chosen[0] == "template" else "user") if role is None else role,
            messages=max_calls,
            show=_show,
            deadline_s=deadline_s,
            response_len=response_len,
        )
    except BaseException:
        registry.close()
        raise
    return wrapped, registry


def _show(reply: Reply) -> str | None:
    """Only what is no result of a call: refusals. An answer without calls is followed by nothing."""
    return f"[not run: {reply.detail}]" if reply.outcome is Outcome.REFUSED else None


def _formats(codec: Codec, formats: Sequence[str] | None) -> tuple[str, ...]:
    own = bool(codec.config.template.call_format)
    if formats is None:
        return ("template",) if own else ("xml", "fence")
    chosen = (formats,) if isinstance(formats, str) else tuple(formats)
    unknown = [form for form in chosen if form not in FORMATS]
    if unknown or not chosen:
        raise ValueError(f"formats={chosen!r}; choose from {', '.join(map(repr, FORMATS))}")
    if "template" in chosen and not own:
        raise ValueError(
            "this template writes no tool calls that can be read (print(config.template.report) says why); "
            "give formats=['xml', 'fence']"
        )
    return chosen


def _check(
    tools: Sequence[Tool],
    formats: Sequence[str],
    max_calls: int,
    call_timeout_s: float,
    shell: Callable[[], ShellSession],
) -> None:
    names = [tool.name for tool in tools]
    if not names:
        raise ValueError("no tool is given; give at least one")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"several tools are called {', '.join(sorted(twice))}; give each a name of its own")
    if isinstance(max_calls, bool) or not isinstance(max_calls, int) or max_calls < 1:
        raise ValueError(f"max_calls={max_calls!r}; give a whole number of 1 or more")
    if not 0 < call_timeout_s < float("inf"):
        raise ValueError(f"call_timeout_s={call_timeout_s!r}; give a number of seconds above 0")
    if formats == ("fence",) and not any(tool.fences for tool in tools):
        raise ValueError("none of these tools is called by fenced code; add 'xml' to formats")
    needs = {tool.needs: tool.name for tool in tools if tool.needs}
    if needs:
        _check_sandbox(needs, shell)


def _check_sandbox(needs: dict[str, str], shell: Callable[[], ShellSession]) -> None:
    """ValueError where the sandbox lacks a program that a tool needs."""
    session = shell()
    try:
        reply = session.reset(0)
        if reply.outcome is not Outcome.OK:
            raise ValueError(f"the sandbox of the tools does not start: {reply.detail}")
        for program, name in needs.items():
            found = session.run(0, f"command -v {program}".encode(), timeout_s=10, idle_s=None, max_bytes=1000)
            if found.rc != 0:
                raise ValueError(
                    f"the tool {name} needs {program}, which the sandbox does not have; install it in the system, or "
                    "give shell=lambda: ShellSession(read_only=[...], env={'PATH': ...}) that shows it"
                )
    finally:
        session.kill()
