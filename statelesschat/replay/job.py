"""The main job: conversations from a file, through the device, checked, and summed up."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import jax

from statelesschat.replay.arrays import Arrays, check_writable
from statelesschat.replay.checking import Checker, Tally
from statelesschat.replay.driving import Driver, Ending
from statelesschat.replay.planning import Script, Widths, batches_of, measured, scripts_of, widths_of
from statelesschat.replay.reading import Record, answer_records, read_conversations, records_of
from statelesschat.text.codec import Codec
from statelesschat.text.configure import make_config
from statelesschat.text.jsonfile import InputError, name_of, read_text
from statelesschat.text.report import TemplateError
from statelesschat.text.template import compile_template
from statelesschat.text.tokenizer import load_tokenizer
from statelesschat.text.writer import Writer

SAMPLE = "sample.jsonl"
_BATCH = 256
_BATCH_IDS = 2**25  # ids of all buffers of a batch: 128 MiB


@dataclasses.dataclass(frozen=True)
class Options:
    """What `replay` is asked to do; the command line has an option for each."""

    file: str | None = None  # None: the sample that comes with the package; "-": standard input
    tokenizer: Any = None  # what `load_tokenizer` takes
    chat_template: str | None = None  # path of a Jinja file
    history: str = "exact"  # or "frozen", see `compile_template`
    system: str | None = None  # system prompt of conversations without one
    answers: str | None = None  # path of an answers file
    capacity: int | None = None  # ids; None: as many as the longest conversation needs
    batch: int | None = None  # conversations on the device at once
    out: str | None = None  # path of the npz file to write
    show: int = 0  # conversations whose text is kept in the tally, the first ones


@dataclasses.dataclass(frozen=True)
class Summary:
    """What `replay` found; the fields of the JSON object."""

    file: str
    tokenizer: str
    template_class: str  # "EXACT", "EXACT_CHAT", "GAPS_EXACT" or "FROZEN_HISTORY"
    conversations: int  # read
    turns: int  # answers written
    prompts: int  # prompts compared with the tokenizer's
    tokens: int  # ids in all conversations at their end
    loss_tokens: int  # of these, those that were sampled
    loss_share: float  # loss_tokens / tokens
    retokenised: int  # answers whose ids a re-render would merge or split otherwise
    mismatches: int  # differences of any other sort
    truncations: dict[str, int]  # conversations cut, by reason
    conversations_per_s: float  # over drive_s
    tokens_per_s: float  # over drive_s
    compile_s: float  # seconds until everything was compiled, apart from the rest
    drive_s: float  # seconds of tokenising, transitions and reading back
    check_s: float  # seconds the reference took
    capacity: int
    batch: int
    device: str


def replay(
    options: Options,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Summary, Tally]:
    """Replay conversations through the device, every prompt compared with the tokenizer's own.

    Args:
        options: what to replay and how.
        advance: called with how many conversations are over and how many there are.

    Returns:
        The summary, and the tally with every mismatch and every conversation that was cut.

    Raises:
        InputError: input that cannot be read or written with this template; one line that says what to do.
        TemplateError: the chat template does not compile.

    Example:
        >>> summary, tally = replay(Options())
        >>> summary.mismatches, summary.truncations
        (0, {})
    """
    if options.out is not None:
        check_writable(options.out, options.file)
    name = SAMPLE if options.file is None else name_of(options.file)
    records = _records(options)
    tokenizer = _tokenizer(options.tokenizer)
    template = _template(tokenizer, options)
    scripts = measured(scripts_of(records, options.system), Writer(tokenizer, template), name)
    widths = widths_of(scripts, options.capacity)
    try:
        config = make_config(tokenizer, chat_template=template, system_prompt=options.system, **widths._asdict())
    except ValueError as error:
        raise InputError(str(error)) from None
    fitting = [script for script in scripts if script.sizes[0] <= config.max_prompt_len]
    codec, batch = Codec(tokenizer, config), _batch(options.batch, widths, len(fitting))
    checker, arrays, clock = Checker(codec, options.show), Arrays(config), _Clock()
    for script in scripts:
        if script.sizes[0] > config.max_prompt_len:
            checker.unfit(script)
    done = len(scripts) - len(fitting)
    with _memory(batch, config.capacity):
        driver = Driver(codec, batch)
        if fitting:
            driver.warm_up()
        clock.lap("compile")
        for group in batches_of(fitting, batch):
            _run(driver, checker, arrays if options.out else None, group, clock)
            done += len(group)
            advance(done, len(scripts))
    if options.out is not None:
        arrays.write(options.out)
    about = {
        "file": name,
        "tokenizer": "bytes (built in)" if options.tokenizer is None else tokenizer.name_or_path or "unnamed",
        "template_class": template.kind,
        "conversations": len(scripts),
        "capacity": config.capacity,
        "batch": batch,
    }
    return _summary(about, checker.tally, clock.spent, len(fitting)), checker.tally


class _Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {"compile": 0.0, "drive": 0.0, "check": 0.0}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.spent[name] += now - self._last
        self._last = now


def _run(driver: Driver, checker: Checker, arrays: Arrays | None, group: list[Script], clock: _Clock) -> None:
    for seen in driver.drive(group):
        clock.lap("drive")
        if isinstance(seen, Ending):
            checker.ending(seen)
            if arrays is not None:
                arrays.add(seen)
        else:
            checker.prompts(seen)
        clock.lap("check")


@contextlib.contextmanager
def _memory(batch: int, capacity: int) -> Iterator[None]:
    """Say what to lower where a batch does not fit into memory."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            what = f"{batch} conversations of {capacity} ids do not fit into memory at once"
            raise InputError(f"{what}; lower --batch or --capacity") from None
        raise


def _records(options: Options) -> list[Record]:
    if options.file is None:
        text = (resources.files("statelesschat.replay") / SAMPLE).read_text(encoding="utf-8")
        records = records_of(text, SAMPLE)
    else:
        records = read_conversations(options.file)
    if options.answers is None:
        return records
    if options.answers == options.file == "-":
        raise InputError("standard input holds the conversations already; give --answers a file")
    return answer_records(records, options.answers)


def _tokenizer(source: Any) -> Any:
    try:
        return load_tokenizer(source)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"--tokenizer {source}: {error}") from None


def _template(tokenizer: Any, options: Options) -> Any:
    source = None if options.chat_template is None else read_text(options.chat_template)
    try:
        return compile_template(tokenizer, chat_template=source, history=options.history)
    except TemplateError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from None


def _batch(batch: int | None, widths: Widths, conversations: int) -> int:
    if batch is not None:
        return max(1, min(batch, conversations))
    return max(1, min(_BATCH, conversations, _BATCH_IDS // widths.capacity))


def _summary(about: dict[str, Any], tally: Tally, spent: dict[str, float], driven: int) -> Summary:
    per_second = 1 / spent["drive"] if spent["drive"] else 0.0
    return Summary(
        **about,
        turns=tally.turns,
        prompts=tally.prompts,
        tokens=tally.tokens,
        loss_tokens=tally.loss_tokens,
        loss_share=tally.loss_tokens / tally.tokens if tally.tokens else 0.0,
        retokenised=tally.retokenised,
        mismatches=len(tally.mismatches),
        truncations=tally.truncations,
        conversations_per_s=driven * per_second,
        tokens_per_s=tally.tokens * per_second,
        compile_s=spent["compile"],
        drive_s=spent["drive"],
        check_s=spent["check"],
        device=jax.default_backend(),
    )
