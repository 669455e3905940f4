"""Stored answers through a task's environment: the same `reset`, `step` and reward that a policy meets."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from statelesschat.core.types import ChatData, Status
from statelesschat.data.rows import RowInfo
from statelesschat.envs.env import Env, EnvState, begin
from statelesschat.host.checking import HostError, check
from statelesschat.rewards.number import NumberError
from statelesschat.scoring.reading import Stored, read_stored
from statelesschat.tasks.naming import named
from statelesschat.tasks.task import Task
from statelesschat.text.codec import Codec
from statelesschat.text.configure import make_config
from statelesschat.text.jsonfile import InputError, name_of, read_text
from statelesschat.text.tokenizer import load_tokenizer
from statelesschat.text.vocabulary import token_bytes

_VAST = 2**26  # a limit that no row comes near: what a batch takes is measured
_NARROWEST = 2048  # widths are this, times 4, times 16, …: few programs serve all rows
_BATCH, _BATCH_IDS = 256, 2**21  # rows at once, and ids of all their answers
_SHOWN = 60  # characters of an answer's end that a verdict shows


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of one row."""

    line: int  # in the file, from 1
    reward: float
    status: str  # of the row: "OK", or why its reward is 0 without a judgement
    is_correct: bool | None  # the row's own label
    ends: str  # the last line of the answer
    detail: str = ""  # of a status HOST_ERROR: what went wrong

    @property
    def agrees(self) -> bool | None:
        """Whether the reward is full where the label says so, and only there; None without a label."""
        return None if self.is_correct is None else (self.reward == 1.0) == self.is_correct


@dataclasses.dataclass(frozen=True)
class Scores:
    """What `score` found."""

    task: str
    file: str
    tokenizer: str
    verdicts: tuple[Verdict, ...]
    seconds: float  # of transitions and rewards, compiling included
    device: str

    @property
    def mean_reward(self) -> float:
        """Over all rows."""
        return float(np.mean([v.reward for v in self.verdicts]))

    @property
    def failed(self) -> list[Verdict]:
        """Rows that could not be judged."""
        return [v for v in self.verdicts if v.status != Status.OK.name]

    @property
    def agreement(self) -> float | None:
        """Share of the labelled rows whose reward agrees with the label; None where no row has one."""
        known = [v.agrees for v in self.verdicts if v.agrees is not None]
        return float(np.mean(known)) if known else None

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        labelled = [v for v in self.verdicts if v.agrees is not None]
        found: dict[str, Any] = {
            "task": self.task,
            "file": self.file,
            "tokenizer": self.tokenizer,
            "rows": len(self.verdicts),
            "mean_reward": self.mean_reward,
            "failed": [v.line for v in self.failed],
        }
        if labelled:
            found |= {
                "agreement": self.agreement,
                "labelled": len(labelled),
                "disagreements": [v.line for v in labelled if not v.agrees],
            }
        verdicts = [dataclasses.asdict(v) for v in self.verdicts]
        return found | {"seconds": round(self.seconds, 3), "device": self.device, "verdicts": verdicts}


def score(
    task: str,
    file: str,
    *,
    tokenizer: Any = None,
    chat_template: str | None = None,
    history: str = "exact",
    batch: int | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Give every stored answer of a file the reward its task gives it, on the device.

    Args:
        task: a task's name.
        file: JSONL, a JSON array, or ``"-"`` for standard input; see `scoring.reading.read_stored`.
        tokenizer: what `load_tokenizer` takes; answers given as ids are its ids.
        chat_template: path of a Jinja file to use in place of the tokenizer's own.
        history: ``"exact"`` or ``"frozen"``, as for `compile_template`.
        batch: rows on the device at once, by default 256 or fewer.
        advance: called with how many rows are done, and how many there are.

    Raises:
        ValueError: an unknown task; InputError, a ValueError, names file and line of what cannot be scored.
        TemplateError: the chat template does not compile.

    Example:
        >>> import json, tempfile
        >>> row = {"question": "2+3?", "answer": "5", "response": "It is 5."}
        >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        ...     print(json.dumps(row), file=file, flush=True)
        ...     score("arithmetic", file.name).mean_reward
        1.0
    """
    chosen = named(task)
    try:
        rows = read_stored(file, chosen)
    except ImportError as error:  # of a grader's library
        raise InputError(str(error)) from None
    loaded = _tokenizer(tokenizer)
    source = None if chat_template is None else read_text(chat_template)
    limits = dict.fromkeys(("capacity", "max_message_len", "max_prompt_len", "max_response_len"), _VAST)
    messages = 2 + max(len(row.prompt) if isinstance(row.prompt, list) else 1 for row in rows)
    config = make_config(
        loaded, chat_template=source, history=history, max_messages=messages + 1, max_turns=1,
        system_prompt=chosen.system_prompt, **limits,
    )  # fmt: skip
    codec, vocabulary = Codec(loaded, config), token_bytes(loaded)
    golds = _golds(rows, chosen, name_of(file))
    began = time.perf_counter()
    verdicts: dict[int, Verdict] = {}
    envs: dict[tuple[int, int], Env] = {}
    for numbers, data, answers in _batches(rows, golds, codec, batch, name_of(file)):
        widths = data.tokens.shape[1], answers.tokens.shape[1]
        if widths not in envs:
            sized = dataclasses.replace(
                config, capacity=sum(widths), max_prompt_len=widths[0], max_response_len=widths[1],
                max_message_len=chosen.limits["max_message_len"],
            )  # fmt: skip
            envs[widths] = chosen.env(Codec(loaded, sized), vocabulary)
        env = envs[widths]
        states = _play(env, data, answers)
        rewards, statuses, said = np.asarray(states.reward), np.asarray(states.status), _faults(states)
        for at, number in enumerate(numbers):
            row = rows[number]
            verdicts[number] = Verdict(
                row.line, float(rewards[at]), Status(int(statuses[at])).name, row.label, _end(row, loaded),
                said.get(at, ""),
            )  # fmt: skip
        advance(len(verdicts), len(rows))
    name = "bytes (built in)" if tokenizer is None else loaded.name_or_path or "unnamed"
    ordered = tuple(verdicts[i] for i in range(len(rows)))
    return Scores(task, name_of(file), name, ordered, time.perf_counter() - began, jax.default_backend())


@jax.jit
def _play(env: Env, data: ChatData, answers: Any) -> EnvState:
    return jax.vmap(env.step)(begin(env, data, jax.random.key(0)), answers)


def _faults(states: EnvState) -> dict[int, str]:
    """What the host says of rows that it could not judge; Ctrl-C that was pressed while it judged is raised."""
    try:
        check(states)
    except HostError as error:
        return error.faults
    return {}


def _golds(rows: Sequence[Stored], task: Task, name: str) -> Any:
    try:
        return jax.tree.map(np.asarray, task.collate([row.task for row in rows]))
    except NumberError as error:
        raise InputError(f"{name}:{rows[error.row].line}: the gold answer {error.reason}") from None


def _batches(
    rows: Sequence[Stored], golds: Any, codec: Codec, batch: int | None, name: str
) -> Iterator[tuple[list[int], ChatData, Any]]:
    """Batches of about equally long answers: the rows' numbers, their prompts and their answers.

    Each has the rows that its width allows, the last one of a width filled up with its first row, whose verdicts nobody
    reads.
    """
    bounds = [_bound(row) for row in rows]
    prompts = len(str(codec.config.system_prompt).encode()) + max(_text_bytes(row.prompt) for row in rows)
    prompt_width = _stepped(prompts + 64 * codec.config.max_messages)
    for width in sorted(set(bounds)):
        members = [i for i, bound in enumerate(bounds) if bound == width]
        size = min(batch or _BATCH, max(1, _BATCH_IDS // width), len(members))
        for start in range(0, len(members), size):
            numbers = members[start : start + size]
            filled = numbers + [numbers[0]] * (size - len(numbers))
            gold = jax.tree.map(lambda leaf, at=filled: leaf[at], golds)
            yield numbers, *_encoded([rows[i] for i in filled], gold, codec, (prompt_width, width), name)


def _bound(row: Stored) -> int:
    """A width that holds the answer, with room for what the template writes around it: an id has a byte at least."""
    answer = row.answer
    return _stepped((len(answer.encode()) if isinstance(answer, str) else len(answer)) + 64)


def _stepped(size: int) -> int:
    width = _NARROWEST
    while width < size:
        width *= 4
    return width


def _encoded(
    rows: Sequence[Stored], gold: Any, codec: Codec, widths: tuple[int, int], name: str
) -> tuple[ChatData, Any]:
    empty = np.zeros(len(rows), np.int32)
    info = RowInfo(np.arange(len(rows), dtype=np.int32), empty, empty, gold)  # type: ignore[arg-type]
    try:
        data = codec.encode([_prompt(row.prompt) for row in rows], info=info, width=widths[0])
        answers = codec.encode_actions([row.answer for row in rows], width=widths[1])
    except ValueError as error:
        raise InputError(_with_line(str(error), rows, name)) from None
    return jax.tree.map(jnp.asarray, (data, answers))


def _with_line(message: str, rows: Sequence[Stored], name: str) -> str:
    """The message of a fault, its row of the batch named by its line in the file."""
    head, _, rest = message.partition(": ")
    number = head.removeprefix("row ")
    return f"{name}:{rows[int(number)].line}: {rest}" if head != number and number.isdigit() else f"{name}: {message}"


def _prompt(prompt: Any) -> Any:
    return prompt if isinstance(prompt, dict) else {"prompt": prompt}


def _text_bytes(prompt: Any) -> int:
    if isinstance(prompt, dict):
        return len(prompt["prompt_ids"])
    if isinstance(prompt, str):
        return len(prompt.encode(errors="replace"))
    return sum(len(str(message).encode(errors="replace")) for message in prompt)


def _end(row: Stored, tokenizer: Any) -> str:
    text = row.answer if isinstance(row.answer, str) else str(tokenizer.decode(row.answer))
    lines = text.strip().splitlines()
    return lines[-1][-_SHOWN:] if lines else ""


def _tokenizer(source: Any) -> Any:
    try:
        return load_tokenizer(source)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"--tokenizer {source}: {error}") from None
