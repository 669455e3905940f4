"""A session whose commands are answers with tool calls in them."""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from statelesschat.host.session import Outcome, Part, Reply, Row, Score, SessionSpec
from statelesschat.host.shell import ShellSession
from statelesschat.host.tool import Context, Result, Tool, shown
from statelesschat.host.tool_calls import Call


class Toolbox:
    """Runs the calls of one conversation's answers, in order; a `Session`.

    Args:
        tools: what can be called.
        find: the calls of an answer.
        make_shell: a new shell, for tools that want one; it is started when a tool first does.
        most: calls that are run in one answer; each of the rest gets an error.
        stop: an answer without calls ends the episode.
        call_timeout_s: seconds for each call; the ``timeout_s`` of ``run`` is for all of them together.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        find: Callable[[str], list[Call]],
        make_shell: Callable[[], ShellSession],
        *,
        most: int,
        stop: bool = False,
        call_timeout_s: float,
    ) -> None:
        self.spec = SessionSpec(name="tools", isolated=False)
        self._tools = {tool.name: tool for tool in tools}
        self._find, self._make_shell = find, make_shell
        self._most, self._stop, self._call_timeout_s = most, stop, call_timeout_s
        self._row, self._seed = Row(), 0
        self._lock = threading.Lock()
        self._shell: ShellSession | None = None
        self._memory: dict[str, Any] = {}
        self._ended = threading.Event()

    def meet(self, row: Row) -> None:
        """Which conversation asks."""
        self._row = row

    def reset(self, seed: int) -> Reply:
        """Forget everything; the shell is started when it is needed."""
        self.kill()
        self._seed, self._memory = seed, {}
        self._ended.clear()
        return Reply(b"")

    def run(self, step: int, action: bytes, *, timeout_s: float, idle_s: float | None, max_bytes: int) -> Reply:
        """Run the calls of an answer; each is a part of the reply, errors too. Without calls there are none."""
        begun = time.perf_counter()
        until = time.monotonic() + timeout_s
        parts, reward, ended = [], 0.0, False
        for index, call in enumerate(self._find(action.decode("utf-8", "replace"))):
            if self._ended.is_set():
                return Reply(b"", Outcome.DEAD, detail="the tools were taken away")
            if index >= self._most:
                parts[-1] = _with_note(parts[-1], f"[only the first {self._most} calls of an answer are run]")
                break
            result = self._called(call, min(self._call_timeout_s, until - time.monotonic()), max_bytes)
            parts.append(Part(result.content, call.name or None, call.id))
            reward += result.reward
            if result.end:
                ended = True
                break
        if self._ended.is_set():
            return Reply(b"", Outcome.DEAD, detail="the tools were taken away")
        obs = "\n".join(part.content for part in parts).encode("utf-8", "surrogateescape")
        took = (time.perf_counter() - begun) * 1000
        event = "submit" if ended or (self._stop and not parts) else None
        return Reply(obs[:max_bytes], n_bytes=len(obs), ms=took, event=event, reward=reward, parts=tuple(parts))

    def state(self) -> Mapping[str, str]:
        """Of the shell, if there is one."""
        shell = self._shell
        return {} if shell is None else shell.state()

    def score(self, final: bool) -> Score:
        """Nothing is measured."""
        return Score({})

    def kill(self) -> None:
        """End the shell; calls that run get no further."""
        self._ended.set()
        self._lose_shell()

    def _called(self, call: Call, timeout_s: float, max_bytes: int) -> Result:
        """What came of one call: an error is a result too."""
        if call.error is not None:
            return Result(f"error: {call.error}")
        if timeout_s <= 0:
            return Result("error: not run: the calls before it took all the time there is")
        tool = self._tools[call.name]
        context = Context(self._row, timeout_s, max_bytes, self._shell_here, self._lose_shell, self._memory)
        future: Future[Any] = Future()
        # A thread that hangs in a function cannot be ended: it is left behind, and is no longer waited for.
        work = threading.Thread(target=_work, args=(future, tool, context, call.arguments), daemon=True)
        work.start()
        try:
            # Tools that run in the shell are stopped there in time; they get a moment to tell.
            value = future.result(timeout_s + (5.0 if tool.needs else 0.0))
        except TimeoutError:
            if not future.done():
                return Result(f"error: {call.name} was given up after {timeout_s:g} s")
            return Result("error: TimeoutError")
        except Exception as error:  # of the tool: the model is told
            return Result(f"error: {type(error).__name__}: {error}")
        result = shown(value)
        if not abs(result.reward) < float("inf"):
            return Result(f"error: {call.name} gave a reward of {result.reward}, which is no number to learn from")
        return result

    def _lose_shell(self) -> None:
        with self._lock:
            shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()

    def _shell_here(self) -> ShellSession:
        """The conversation's shell, started if there is none."""
        with self._lock:
            if self._ended.is_set():
                raise RuntimeError("the tools were taken away")
            if self._shell is None:
                shell = self._make_shell()
                reply = shell.reset(self._seed)
                if reply.outcome is not Outcome.OK:
                    raise RuntimeError(f"the shell did not start: {reply.detail}")
                self._shell = shell
            return self._shell


def _work(future: "Future[Any]", tool: Tool, context: Context, arguments: dict[str, Any]) -> None:
    try:
        value = tool.call(context, arguments)
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
    else:
        future.set_result(value)


def _with_note(part: Part, note: str) -> Part:
    return dataclasses.replace(part, content=f"{part.content}\n{note}")
