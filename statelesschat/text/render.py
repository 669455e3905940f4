"""Rendering through the tokenizer's own chat template, with its clock stopped."""

import datetime
import importlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from statelesschat.core.types import Kind, Role
from statelesschat.text.fields import Content, message_dict
from statelesschat.text.marks import Segments, Shape

DEFAULT_ROLES: tuple[str, ...] = ("system", "user", "assistant", "tool")
_CLOCK = threading.Lock()


class RenderError(ValueError):
    """The template raised on a conversation; the message is its own."""


class Renderer:
    """Renders role sequences to text as ``tokenizer.apply_chat_template`` does, always at the same moment.

    Args:
        tokenizer: a fast tokenizer of transformers.
        source: the Jinja text.
        roles: the template's name of each `Role`, in the order of `Role`.
        options: variables the template is given (``template_kwargs``).
        clock: the moment at which its dates stand still, ISO 8601.
        tools: specs of tools, as JSON.
        shape: how it writes tool calls, None until that is known or where it writes none.
    """

    def __init__(
        self,
        tokenizer: Any,
        source: str,
        roles: Sequence[str],
        options: Mapping[str, Any],
        clock: str,
        tools: Sequence[str] = (),
        shape: Shape | None = None,
    ) -> None:
        self.given = {"tokenizer": tokenizer, "source": source, "roles": roles, "options": options, "clock": clock}
        self.tokenizer = tokenizer
        self.source = source
        self.roles = tuple(roles)
        self.options = dict(options)
        self.clock = datetime.datetime.fromisoformat(clock)
        self.tools = tuple(tools)
        self.shape = shape
        self.taken: dict[tuple[tuple[int, ...], bool], Segments] = {}  # renders of sentinels, taken apart
        self._specs = [json.loads(tool) for tool in tools] or None
        self._dated = "strftime_now" in source

    def messages(self, kinds: Sequence[int], contents: Sequence[Content]) -> list[dict[str, Any]]:
        """The conversation as message dicts, with the template's role names."""
        forms = (self.shape.arguments, self.shape.blank) if self.shape is not None else ()
        names = (*self.roles, self.roles[Role.ASSISTANT])  # the last is CALL's
        return [message_dict(names[k], c, *forms) for k, c in zip(kinds, contents, strict=True)]

    def __call__(self, kinds: Sequence[int], contents: Sequence[Content], generate: bool) -> str:
        """The text of a conversation; RenderError where the template refuses it."""
        return self.render(self.messages(kinds, contents), generate)

    def render(self, messages: list[dict[str, Any]], generate: bool) -> str:
        """The text of message dicts, with the generation prompt or without."""
        try:
            with _stopped_clock(self.clock) if self._dated else _no_clock():
                return self.tokenizer.apply_chat_template(
                    messages,
                    tools=self._specs,
                    chat_template=self.source,
                    tokenize=False,
                    add_generation_prompt=generate,
                    **self.options,
                )
        except Exception as error:  # a template is a program of somebody else's: whatever it raises is its answer
            raise RenderError(f"{type(error).__name__}: {error}") from None


def options_key(options: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """``template_kwargs`` in a hashable form, as (name, JSON) pairs."""
    pairs = []
    for name, value in sorted((options or {}).items()):
        try:
            pairs.append((name, json.dumps(value, sort_keys=True)))
        except TypeError:
            raise TypeError(
                f"template_kwargs[{name!r}] is a {type(value).__name__}; only values that JSON can hold are passed "
                "to a chat template"
            ) from None
    return tuple(pairs)


def options_dict(key: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The inverse of `options_key`."""
    return {name: json.loads(value) for name, value in key}


def role_names(roles: Mapping[Any, str] | Sequence[str] | None) -> tuple[str, ...]:
    """The template's name of each `Role`, from a sequence of four or a mapping of those that differ."""
    if roles is None:
        return DEFAULT_ROLES
    if isinstance(roles, Mapping):
        names: dict[Role, str] = dict(zip(Role, map(str, DEFAULT_ROLES), strict=True))
        for key, name in roles.items():
            names[role_of(key)] = name
        return tuple(names[role] for role in Role)
    if isinstance(roles, str) or len(roles) != len(Role):
        raise ValueError(f"roles={roles!r}; give four names (system, user, assistant, tool) or a mapping from them")
    return tuple(roles)


def role_of(role: Any, names: Sequence[str] = DEFAULT_ROLES) -> Role:
    """A `Role` from itself, its number or its name; ValueError says which names there are."""
    if isinstance(role, str):
        if role in names:
            return Role(tuple(names).index(role))
        if role in DEFAULT_ROLES:
            return Role(DEFAULT_ROLES.index(role))
    elif isinstance(role, int | np.integer) and not isinstance(role, bool) and int(role) in tuple(Role):
        return Role(int(role))
    raise ValueError(f"unknown role {role!r}; the roles are {', '.join(names)}")


def neighbour_of(kind: Any, names: Sequence[str] = DEFAULT_ROLES) -> Kind:
    """A `Kind` that may stand beside a message: a role, ``"start"`` or ``"generate"``."""
    if isinstance(kind, str) and kind in ("start", "generate"):
        return Kind.START if kind == "start" else Kind.GENERATE
    if isinstance(kind, Kind):
        return kind
    return Kind(int(role_of(kind, names)))


@contextmanager
def _stopped_clock(moment: datetime.datetime) -> Iterator[None]:
    """The clock that ``strftime_now`` reads, stopped: transformers passes templates plain data only, no functions."""
    chat_template_utils: Any = importlib.import_module("transformers.utils.chat_template_utils")

    class Stopped(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return moment

    with _CLOCK:
        real = chat_template_utils.datetime
        chat_template_utils.datetime = Stopped
        try:
            yield
        finally:
            chat_template_utils.datetime = real


@contextmanager
def _no_clock() -> Iterator[None]:
    yield
