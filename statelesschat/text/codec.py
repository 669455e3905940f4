"""Text and histories to arrays and back."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from statelesschat.core.config import ChatConfig
from statelesschat.core.types import Action, ChatData, ChatState, Column, Finish, Kind, Message, Role
from statelesschat.text.build import fingerprint
from statelesschat.text.calls import CallFormat, Reading, read_calls
from statelesschat.text.decoding import decode_answers, decode_blocks, decode_histories, decode_responses, decode_texts
from statelesschat.text.fields import Content
from statelesschat.text.inputs import (
    Conversation,
    TooLongError,
    answer_of,
    check_keys,
    conversation_of,
    ids_of,
    logprobs_of,
    per_row,
    result_of,
    rows_of,
    text_of,
)
from statelesschat.text.render import neighbour_of, role_of
from statelesschat.text.rows import each, in_row, mapped
from statelesschat.text.writer import ANSWERS, Draft, Writer, Written


class Codec:
    """Encodes prompts, answers and messages for a config, and reads states back as text and histories.

    All of its arrays are numpy and have a leading batch axis B; every fault raises ValueError with the row, before
    any device work.

    Args:
        tokenizer: the tokenizer the config was made with.
        config: of `make_config`.

    Example:
        >>> import jax, statelesschat as sc
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> codec = sc.Codec(tokenizer, config)
        >>> states = jax.vmap(sc.reset, (None, 0))(sc.init(config), codec.encode(["2+3?"]))
        >>> states = jax.vmap(sc.step)(states, codec.encode_actions(["5"]))
        >>> codec.decode_history(states)[0][-1]
        {'role': 'assistant', 'content': '5', 'finish_reason': 'stop'}
    """

    def __init__(self, tokenizer: Any, config: ChatConfig) -> None:
        if len(tokenizer) != config.template.vocab_size:
            raise ValueError(
                f"the tokenizer has {len(tokenizer)} ids, the config was made with one of "
                f"{config.template.vocab_size}; give both the same tokenizer"
            )
        if fingerprint(tokenizer) != config.template.fingerprint:
            raise ValueError("the tokenizer encodes otherwise than the config's; give both the same tokenizer")
        self.tokenizer = tokenizer
        self.config = config
        self.writer = Writer(tokenizer, config.template)

    def encode(
        self,
        prompts: Any,
        *,
        key: str | None = None,
        info: Any = None,
        turn_limit: int | Sequence[int] | None = None,
        width: int | None = None,
    ) -> ChatData:
        """First prompts, each rendered whole: system prompt, history and generation prompt.

        A history that ends in an answer ends at its stop id, so that a message is appended next.

        Args:
            prompts: a string, a history (list of ``{"role", "content"}``), or a list whose rows are either, or dicts
                that hold one under ``messages``, ``prompt`` or ``query``, or ids under ``prompt_ids``.
            key: the dicts' key, where it is another.
            info: a pytree of numeric arrays with leading axis B for the task, handed on as it is.
            turn_limit: answers until truncation, one for all or one for each row; by default ``max_turns``.
            width: D, by default ``max_prompt_len``; one width is one trace.

        Returns:
            ChatData with tokens int32[B, D], length int32[B], table int32[B, max_messages, 10], turn_limit int32[B].
        """
        rows = rows_of(prompts)
        config = self.config
        limits = per_row(config.max_turns if turn_limit is None else turn_limit, len(rows), "turn_limit")
        conversations = each(rows, lambda row: conversation_of(row, config.template.roles, key, self.writer.reads))
        each(conversations, lambda c: ids_of(c.ids, config.template.vocab_size) if c.ids is not None else None)
        drafts = each(conversations, self._prompt)
        self._check_messages(drafts)
        written = iter(self.writer.write([d for d in drafts if d is not None]))
        tables: Any = np.full((len(rows), config.max_messages, len(Column)), -1, np.int32)
        sequences = []
        for row, (conversation, draft, limit) in enumerate(zip(conversations, drafts, limits, strict=True)):
            if draft is None:
                ids = list(conversation.ids or ())
                tables[row, 0] = [Kind.RAW, 0, 0, len(ids), 0, 0, Kind.START, Kind.GENERATE, -1, Finish.NONE]
            else:
                block = next(written)
                ids = block.ids
                tables[row, : len(draft.kinds)] = _table(draft.kinds, block)
            if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or not 1 <= limit <= config.max_turns:
                raise ValueError(f"row {row}: turn_limit={limit!r}; give 1 to max_turns={config.max_turns}")
            sequences.append(ids)
        tokens, lengths = self._pad(sequences, width, "max_prompt_len", "prompt")
        turn_limits: Any = np.asarray(limits, np.int32)
        return ChatData(tokens, lengths, tables, turn_limits, info)

    def encode_actions(
        self,
        answers: Any,
        *,
        logprobs: Sequence[Any] | None = None,
        stop: bool = True,
        finished: bool | Sequence[bool] = True,
        begin: bool = True,
        width: int | None = None,
    ) -> Action:
        """Answers as actions: text is tokenised as the template would write it, ids are taken as they are.

        All ids of a text count as sampled, as an engine that stopped there would have sampled them.

        Args:
            answers: B answers, each a string, a list of ids, or a message dict with ``tool_calls``, which is written as
                the template writes it. A text that calls tools in the template's own way ends as such messages do.
            logprobs: for each row log p of each id, in nats; needed where the config stores them.
            stop: False leaves a text without its stop id, as if cut by a length limit.
            finished: False: the answer goes on in the next action, so nothing closes its text, whatever `stop` says.
            begin: False: the text continues an answer, so what the template writes first is not written again.
            width: R, by default ``max_response_len``.

        Returns:
            Action with tokens int32[B, R], length int32[B], logprobs float32[B, R] or None, finished bool[B].
        """
        if isinstance(answers, Mapping | set):
            raise TypeError(f"answers come as a list of strings or ids, not as {type(answers).__name__}")
        rows = [answers] if isinstance(answers, str) else list(answers)
        if not rows:
            raise ValueError("the batch is empty; give at least one answer")
        done = per_row(finished, len(rows), "finished")
        if not all(isinstance(flag, bool | np.bool_) for flag in done):
            raise TypeError(f"finished={finished!r}; give True or False, one for all rows or one for each")
        drafts = each(
            list(zip(rows, done, strict=True)),
            lambda r: self._answer(r[0], begin=begin, finished=bool(r[1]), stop=stop),
        )
        written = iter(self.writer.write([d for d in drafts if d is not None]))
        vocabulary = self.config.template.vocab_size
        sequences = []
        for row, (answer, draft) in enumerate(zip(rows, drafts, strict=True)):
            known = next(written).ids if draft is not None else None
            sequences.append(known if known is not None else in_row(row, lambda a=answer: ids_of(a, vocabulary)))
        tokens, lengths = self._pad(sequences, width, "max_response_len", "answer")
        flags: Any = np.asarray(done)
        return Action(tokens, lengths, self._logprobs(logprobs, sequences, tokens.shape), flags)

    def encode_messages(
        self,
        role: Any,
        contents: Any,
        *,
        previous: Any = "assistant",
        next: Any = "generate",
        width: int | None = None,
    ) -> Message:
        """Messages of the other side as whole blocks.

        What a block holds depends on its neighbours, so they are said here and checked by `append`. Each of ``role``,
        ``previous`` and ``next`` is one for all rows or one for each.

        Args:
            role: a `Role` or its name.
            contents: B strings (or one). A tool result may be a dict with ``content``, ``name`` and ``tool_call_id``,
                which it has to be where the template writes those.
            previous: the role before, or ``"start"``. A tool result stands behind a message with tool calls wherever
                the template writes those; ``Kind.ASSISTANT`` says that there are none.
            next: the role after, or ``"generate"``: an answer is asked for.
            width: W, by default ``max_message_len``.

        Returns:
            Message with tokens int32[B, W], length int32[B], header int32[B, 7].
        """
        rows = [contents] if isinstance(contents, str | Mapping) else list(contents)
        if not rows:
            raise ValueError("the batch is empty; give at least one content")
        names = self.config.template.roles
        roles = mapped(per_row(role, len(rows), "role"), lambda r: role_of(r, names))
        befores = mapped(per_row(previous, len(rows), "previous"), lambda k: neighbour_of(k, names))
        given = per_row(previous, len(rows), "previous")
        befores = [
            before if isinstance(what, Kind) else Kind(self.writer.behind(before, role))
            for what, before, role in zip(given, befores, roles, strict=True)
        ]
        afters = mapped(per_row(next, len(rows), "next"), lambda k: neighbour_of(k, names))
        drafts = each(
            list(zip(roles, rows, befores, afters, strict=True)),
            lambda r: self.writer.message(int(r[0]), self._content(r[1], r[0]), int(r[2]), int(r[3])),
        )
        written = self.writer.write(drafts)
        lines = zip(written, roles, befores, afters, strict=True)
        headers: Any = np.asarray(
            [(kind, *block.spans[0][1:], before, after) for block, kind, before, after in lines], np.int32
        )
        tokens, lengths = self._pad([w.ids for w in written], width, "max_message_len", "message")
        return Message(tokens, lengths, headers)

    def decode_text(self, states: ChatState) -> list[str]:
        """The conversations as text, control tokens written out; one string for each row."""
        return decode_texts(self.writer, states)

    def decode_history(self, states: ChatState, *, calls: bool = True) -> list[list[dict[str, Any]]]:
        """The conversations as message dicts, contents as they went in, up to normaliser and template transform.

        An answer whose tool calls can be read has them under ``tool_calls``, and under ``content`` what is said beside
        them; the ids stay what was sampled. ``calls=False`` leaves its text as it is. An answer that was sampled has a
        ``finish_reason``: ``"stop"``, ``"length"`` or ``"open"``. A prompt given as ids is one message with the role
        ``"prompt"``.
        """
        return decode_histories(self.writer, states, calls)

    def decode_responses(self, states: ChatState) -> list[str]:
        """Each conversation's latest answer as text, for rewards and tools between turns.

        It is the ``content`` that ``decode_history(states, calls=False)`` gives that answer: without what the template
        writes around answers and without the stop id; control tokens in it are written out. Only its ids are read
        from the device. It is the empty string before any id was sampled.

        Example:
            >>> import jax, statelesschat as sc
            >>> tokenizer = sc.load_tokenizer(None)
            >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
            >>> codec = sc.Codec(tokenizer, config)
            >>> states = jax.vmap(sc.reset, (None, 0))(sc.init(config), codec.encode(["2+3?", "1+1?"]))
            >>> states = jax.vmap(sc.step)(states, codec.encode_actions(["5", "two"]))
            >>> codec.decode_responses(states)
            ['5', 'two']
        """
        return decode_responses(self.writer, states)

    def decode_answers(self, tokens: Any, lengths: Any, finishes: Any, first: Any = None) -> list[str]:
        """Answers as text, as `decode_responses` gives them, from their ids alone: for what gets no states.

        Args:
            tokens: int32[B, R], ids without the stop id.
            lengths: int32[B], how many there are.
            finishes: int32[B], a `Finish` each.
            first: bool[B], whether they are the first tokens of their conversation; by default none is.

        Example:
            >>> import statelesschat as sc
            >>> tokenizer = sc.load_tokenizer(None)
            >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
            >>> codec = sc.Codec(tokenizer, config)
            >>> codec.decode_answers([[53, 0]], [1], [sc.Finish.STOP])
            ['5']
        """
        lengths, finishes = np.atleast_1d(np.asarray(lengths)), np.atleast_1d(np.asarray(finishes))
        firsts = np.zeros(lengths.shape, bool) if first is None else np.atleast_1d(np.asarray(first, bool))
        return decode_answers(self.writer, np.atleast_2d(np.asarray(tokens)), lengths, finishes, firsts)

    def decode_messages(self, messages: Message) -> list[dict[str, str]]:
        """Messages as dicts, the inverse of `encode_messages`."""
        return decode_blocks(self.writer, messages)

    def read_calls(self, answers: Sequence[str]) -> list[Reading]:
        """The tool calls in answers' texts, read in the way the template itself writes them.

        Returns one `Reading` for each answer: ``content`` (what is said beside the calls), ``calls`` (each with
        ``name``, ``arguments`` as JSON of an object, and ``id`` if the answer gives one), and ``error``, which says
        what is wrong with a call that cannot be read, or None. Arguments that are written as text are strings where
        the tool's spec says so, and read as JSON otherwise.

        Raises:
            ValueError: the template writes no tool calls, or in no format that is known; ``template.report`` says so.
        """
        if not self.config.template.call_format:
            raise ValueError("this template's tool calls cannot be read; print(config.template.report) says why")
        form = CallFormat(*self.config.template.call_format)
        answers = [answers] if isinstance(answers, str) else answers
        return [read_calls(form, answer, self.writer.types) for answer in answers]

    def _content(self, content: Any, role: Role) -> Content:
        """The content of a message that is appended, given as text or, mostly a tool result, as a dict."""
        if not isinstance(content, Mapping):
            return text_of(content)
        if "content" not in content:
            raise ValueError("a message given as a dict has content; a result that is JSON is given as text")
        check_keys(content, role.name.lower(), self.writer.reads)
        return result_of(content, role == Role.TOOL)

    def _answer(self, answer: Any, *, begin: bool, finished: bool, stop: bool) -> Draft | None:
        """The draft of an answer; None for one that is ids already."""
        if not isinstance(answer, str | Mapping):
            return None
        if isinstance(answer, Mapping):
            if not (begin and finished):
                raise ValueError("an answer with tool_calls is written whole; give its pieces as ids or text")
            if not answer.get("tool_calls") and not isinstance(answer.get("content"), str | list | tuple):
                raise ValueError("an answer given as a message has content or tool_calls")
            check_keys(answer, "assistant", self.writer.reads)
            content = answer_of(answer)
            return self.writer.answer(content, stop=stop)
        text = text_of(answer)
        calls = finished and stop and self.writer.calls_tools(text)
        return self.writer.answer(text, begin=begin, finished=finished, stop=stop, calls=calls)

    def _prompt(self, conversation: Conversation) -> Draft | None:
        if conversation.ids is not None:
            return None
        kinds, contents = conversation.kinds, conversation.contents
        if self.config.system_prompt is not None and kinds[0] != Role.SYSTEM:
            kinds, contents = (int(Role.SYSTEM), *kinds), (self.config.system_prompt, *contents)
        return self.writer.prompt(kinds, contents)

    def _check_messages(self, drafts: Sequence[Draft | None]) -> None:
        limit, crowded = self.config.max_messages, {}
        for row, draft in enumerate(drafts):
            if draft is not None and len(draft.kinds) + (draft.kinds[-1] not in ANSWERS) > limit:
                crowded[row] = f"{len(draft.kinds)} messages and an answer are more than max_messages={limit}"
        if crowded:
            row, what = next(iter(crowded.items()))
            raise TooLongError(f"row {row}: {what}; raise it", crowded)

    def _pad(
        self, sequences: Sequence[Sequence[int]], width: int | None, option: str, what: str
    ) -> tuple[Any, Any]:  # numpy arrays, which stand for jax arrays until a transition takes them
        limit: int = getattr(self.config, option)
        width = limit if width is None else width
        if not 1 <= width <= limit:
            raise ValueError(f"width={width}; give 1 to {option}={limit}")
        lengths = np.fromiter(map(len, sequences), np.int32, len(sequences))
        if (lengths > width).any():
            bound = f"{option}={limit}" if width == limit else f"width={width}"
            rows = np.flatnonzero(lengths > width).tolist()
            long = {row: f"the {what} takes {lengths[row]} ids, more than {bound}" for row in rows}
            raise TooLongError(f"row {rows[0]}: {long[rows[0]]}; raise it or shorten", long)
        tokens = np.full((len(sequences), width), self.config.template.pad_id, np.int32)
        ids = np.fromiter(itertools.chain.from_iterable(sequences), np.int32, int(lengths.sum()))
        tokens[np.arange(width) < lengths[:, None]] = ids
        return tokens, lengths

    def _logprobs(
        self, logprobs: Sequence[Any] | None, sequences: Sequence[Sequence[int]], shape: tuple[int, ...]
    ) -> Any:
        if not self.config.store_logprobs:
            if logprobs is not None:
                raise ValueError("this config stores no logprobs; make_config(..., store_logprobs=True) does")
            return None
        if logprobs is None:
            raise ValueError("this config stores logprobs; give logprobs=[...], one list for each row")
        padded = np.zeros(shape, np.float32)
        for row, (values, ids) in enumerate(zip(per_row(logprobs, len(sequences), "logprobs"), sequences, strict=True)):
            padded[row, : len(ids)] = in_row(row, functools.partial(logprobs_of, values, len(ids)))
        return padded


def _table(kinds: Sequence[int], block: Written) -> np.ndarray:
    nexts = [*kinds[1:], Kind.GENERATE if kinds[-1] not in ANSWERS else Kind.NONE]
    befores = [Kind.START, *kinds[:-1]]
    rows = [
        [kind, start, piece, end, lead, trail, before, after, -1, finish]
        for kind, (start, piece, end, lead, trail), before, after, finish in zip(
            kinds, block.spans, befores, nexts, block.finishes, strict=True
        )
    ]
    return np.asarray(rows, np.int32)
