"""What a tool is: a name, a schema of its arguments, and what it does with them."""

import dataclasses
import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from statelesschat.host.session import Outcome, Row
from statelesschat.host.shell import ShellSession
from statelesschat.text.fields import specs_of

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class Result(NamedTuple):
    """What a tool says; a plain text is one that ends nothing and earns nothing."""

    content: str
    reward: float = 0.0
    end: bool = False  # the episode is over
    outcome: Outcome = Outcome.OK


class Context(NamedTuple):
    """What a call happens in."""

    row: Row
    timeout_s: float
    max_bytes: int
    shell: Callable[[], ShellSession]  # the conversation's own, started when it is first asked for
    lose: Callable[[], None]  # forget the shell, which has ended
    memory: dict[str, Any]  # the conversation's own, empty at its beginning


@dataclasses.dataclass(frozen=True)
class Tool:
    """A tool.

    Args:
        name: as the model calls it.
        spec: a JSON schema as chat templates take it, ``{"type": "function", "function": {…}}``: for
            ``make_config(tools=[tool.spec])``.
        call: ``(context, arguments) -> Result`` or text, or anything that is shown as JSON; what it raises is shown to
            the model as an error.
        fences: names of fenced code blocks that call it, with the block as its only argument.
        needs: a program that has to be there in the sandbox.
    """

    name: str
    spec: Mapping[str, Any]
    call: Callable[[Context, dict[str, Any]], Any]
    fences: tuple[str, ...] = ()
    needs: str | None = None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The schema of its arguments, by name."""
        return self._schema.get("properties") or {}

    @property
    def main(self) -> str | None:
        """The argument that raw text is given as: the only required one, if it is a string."""
        required = self._schema.get("required") or list(self.parameters)
        single = required[0] if len(required) == 1 else None
        return single if single and self.parameters.get(single, {}).get("type") == "string" else None

    @property
    def _schema(self) -> Mapping[str, Any]:
        return self.spec.get("function", self.spec).get("parameters") or {}

    def check(self, arguments: Any) -> None:
        """ValueError, for the model to read, where arguments are not what the schema says."""
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of {self.name} are no object")
        known = self.parameters
        unknown = [name for name in arguments if name not in known]
        if unknown:
            raise ValueError(f"{self.name} has no argument {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
        missing = [name for name in self._schema.get("required") or () if name not in arguments]
        if missing:
            raise ValueError(f"{self.name} needs {', '.join(missing)}")
        for name, value in arguments.items():
            kinds = known[name].get("type") if isinstance(known[name], Mapping) else None
            kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
            if kinds and not any(_is(value, kind) for kind in kinds) and not known[name].get("nullable"):
                raise ValueError(f"{self.name}: {name} is {json.dumps(value)[:60]}, which is no {' or '.join(kinds)}")


def as_tool(tool: Any) -> Tool:
    """A `Tool`, or a Python function as one.

    A function is described by its signature and its docstring in Google's style, which has to tell of each argument.
    A parameter annotated with `Row` is not the model's: it is given the row that asks.

    Raises:
        ValueError: a function that cannot be described; says why.

    Example:
        >>> from statelesschat.host import Row, as_tool
        >>> def add(a: int, b: int, row: Row) -> int:
        ...     '''Add two numbers.
        ...
        ...     Args:
        ...         a: One number.
        ...         b: Another.
        ...     '''
        ...     return a + b
        >>> sorted(as_tool(add).parameters)
        ['a', 'b']
    """
    if isinstance(tool, Tool):
        return tool
    if not callable(tool):
        raise TypeError(f"{tool!r} is no tool; give a function or a Tool")
    hints = typing.get_type_hints(tool)
    rows = [name for name in inspect.signature(tool).parameters if hints.get(name) is Row]
    spec = json.loads(specs_of([_without(tool, rows)])[0])
    name = spec["function"]["name"]
    return Tool(name, spec, functools.partial(_call, tool, tuple(rows)))


def shown(value: Any) -> Result:
    """What a tool gave, as a `Result`."""
    if isinstance(value, Result):
        return value
    if isinstance(value, str):
        return Result(value)
    try:
        return Result(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError):
        return Result(str(value))


def _call(function: Callable[..., Any], rows: tuple[str, ...], context: Context, arguments: dict[str, Any]) -> Any:
    return function(**arguments, **dict.fromkeys(rows, context.row))


def _without(function: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """The function as one that has not these parameters, to be described."""
    if not names:
        return function

    @functools.wraps(function)
    def described(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("only described, never called")

    signature = inspect.signature(function)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in names]
    described.__signature__ = signature.replace(parameters=kept)  # pyright: ignore[reportAttributeAccessIssue]
    described.__annotations__ = {k: v for k, v in typing.get_type_hints(function).items() if k not in names}
    del described.__wrapped__
    return described


def _is(value: Any, kind: str) -> bool:
    """Whether a JSON value is of a kind: a bool is no number, a whole float is an integer."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))
