"""The host side of a config: its template compiled, its limits checked."""

import inspect
import math
from typing import Any

from statelesschat.core.config import ChatConfig, ChatTemplate
from statelesschat.core.types import Kind, Role
from statelesschat.text.inputs import text_of
from statelesschat.text.template import compile_template
from statelesschat.text.writer import Writer


def make_config(
    tokenizer: Any,
    *,
    capacity: int,
    max_messages: int,
    max_message_len: int,
    max_turns: int,
    max_prompt_len: int | None = None,
    max_response_len: int | None = None,
    system_prompt: str | None = None,
    store_logprobs: bool = False,
    overflow_reward: float = 0.0,
    chat_template: str | ChatTemplate | None = None,
    **options: Any,
) -> ChatConfig:
    """The constants of an environment: compiles and verifies the chat template and checks the widths.

    Args:
        tokenizer: a fast tokenizer of transformers (`load_tokenizer`).
        capacity: ids a conversation may hold in all.
        max_messages: messages it may hold, the system message and the answers included.
        max_message_len: ids of one appended block: a message and the template's text around it.
        max_turns: answers until a row is truncated; a row's own ``turn_limit`` may be lower.
        max_prompt_len: ids of the first prompt; by default ``max_message_len``.
        max_response_len: ids of one action; by default ``max_message_len``.
        system_prompt: put first unless a history brings a system message of its own.
        store_logprobs: keep the sampled ids' log-probabilities beside them.
        overflow_reward: the reward of a transition that did not fit.
        chat_template: Jinja text, or a template compiled before; by default the tokenizer's own.
        **options: of `compile_template`.

    Returns:
        A frozen, hashable config, the static part of every state.

    Raises:
        ValueError: a limit that cannot be, or a system prompt that the template cannot write or that does not fit.
        TemplateError: the template does not compile.

    Example:
        >>> import statelesschat as sc
        >>> config = sc.make_config(
        ...     sc.load_tokenizer(None), capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> config.template.kind, config.max_prompt_len
        ('EXACT', 64)
    """
    widths = {
        "capacity": capacity,
        "max_messages": max_messages,
        "max_message_len": max_message_len,
        "max_turns": max_turns,
        "max_prompt_len": max_message_len if max_prompt_len is None else max_prompt_len,
        "max_response_len": max_message_len if max_response_len is None else max_response_len,
    }
    for name, value in widths.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**30:
            raise ValueError(f"{name}={value!r}; give a positive whole number below 2**30")
        if name.endswith("_len") and value > capacity:
            raise ValueError(f"{name}={value} is more than capacity={capacity}; lower it or raise capacity")
    if max_messages < 2:
        raise ValueError("max_messages=1 has no room for an answer; give at least 2")
    if not math.isfinite(overflow_reward):
        raise ValueError(f"overflow_reward={overflow_reward!r}; give a finite number")
    if isinstance(chat_template, ChatTemplate):
        if options:
            raise ValueError(f"{', '.join(options)}: give these to compile_template, with which chat_template was made")
        template = chat_template
    else:
        known = set(inspect.signature(compile_template).parameters)
        unknown = [name for name in options if name not in known]
        if unknown:
            raise TypeError(
                f"make_config has no option {', '.join(unknown)}; a chat template's variables go into template_kwargs"
            )
        template = compile_template(tokenizer, chat_template=chat_template, **options)
    config = ChatConfig(
        template=template,
        system_prompt=system_prompt,
        store_logprobs=bool(store_logprobs),
        overflow_reward=float(overflow_reward),
        **widths,
    )
    writer = Writer(tokenizer, template)
    if system_prompt is not None:
        _check_system_prompt(writer, config)
    elif template.allows(Kind.START, Kind.USER) and template.allows(Kind.USER, Kind.GENERATE):
        length = len(writer.write([writer.prompt((Role.USER,), ("?",))])[0].ids)
        if length > config.max_prompt_len:
            raise ValueError(
                f"a question of one character takes {length} ids with what the template writes around it, more than "
                f"max_prompt_len={config.max_prompt_len}; raise max_prompt_len"
            )
    return config


def _check_system_prompt(writer: Writer, config: ChatConfig) -> None:
    try:
        draft = writer.prompt((Role.SYSTEM, Role.USER), (text_of(config.system_prompt), "?"))
    except ValueError as error:
        raise ValueError(f"system_prompt: {error}") from None
    length = len(writer.write([draft])[0].ids)
    if length > config.max_prompt_len:
        raise ValueError(
            f"system_prompt: with a question of one character it takes {length} ids, more than "
            f"max_prompt_len={config.max_prompt_len}; raise max_prompt_len"
        )
