"""The command line: ``python -m statelesschat``."""

import contextlib
import dataclasses
import enum
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="StatelessChat: chat environments for reinforcement learning in JAX. Without a command it replays a sample.",
)


class _History(enum.StrEnum):
    EXACT = "exact"
    FROZEN = "frozen"


@app.callback(invoke_without_command=True)
def _bare(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        replay(show=2)


@app.command()
def replay(
    file: Annotated[
        str | None, typer.Argument(help="JSONL or JSON, or - for standard input. Without it: a small sample.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub name. Without it: the built-in byte tokenizer.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Jinja file to use in place of the tokenizer's template."),
    ] = None,
    history: Annotated[
        _History,
        typer.Option(help="frozen: take a template that rewrites earlier turns; they stay as sampled."),
    ] = _History.EXACT,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt of conversations without one.")
    ] = None,
    answers: Annotated[
        str | None, typer.Option(metavar="FILE", help="Answers for conversations without any; see above.")
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(min=1, help="Ids a conversation may hold. Without it: what the longest one takes."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Conversations on the device at once. Without it: at most 256.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE.npz", help="Write tokens, loss mask, roles, turns and messages there."),
    ] = None,
    show: Annotated[int, typer.Option(min=0, metavar="N", help="Print the first N conversations too.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of the table.")] = False,
) -> None:
    """Replay conversations on the device and compare every prompt with the tokenizer's own chat template.

    A conversation is a JSON object with one of these: messages (a list of role and content), turns (a list of user
    texts), prompt (a text or a list of messages), or question with answer or solution. The messages before the first
    answer are its first prompt; each answer goes in as a policy's would, each message behind it is appended.

    An answers file has one line for each conversation, in order, or matched by id or question_id: a text, a list of
    texts, null, or an object with answers, turns, answer, solution or choices. Of a conversation without answers only
    the first prompt is compared.

    Exit code: 0 if every prompt was the tokenizer's, 1 if one was not, 2 for input that cannot be used. A conversation
    longer than --capacity is no mismatch: it is counted under truncations.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it has one about not finding PyTorch
    from statelesschat.replay.job import InputError, Options
    from statelesschat.replay.job import replay as run
    from statelesschat.replay.showing import print_shown, print_summary, print_troubles
    from statelesschat.text.progress import progress
    from statelesschat.text.report import TemplateError

    options = Options(file, tokenizer, chat_template, str(history), system, answers, capacity, batch, out, show)
    try:
        with progress("replaying", "replayed {} of {} conversations") as advance:
            summary, tally = run(options, advance)
    except (InputError, TemplateError) as error:
        print(error, file=sys.stderr)
        if getattr(error, "kind", "") == "FROZEN_HISTORY":
            print("  on the command line: --history frozen", file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(130) from None
    print_troubles(tally, summary.file)
    if as_json:
        print(json.dumps(dataclasses.asdict(summary), ensure_ascii=False))
    else:
        print_shown(tally)
        print_summary(summary)
    raise typer.Exit(1 if summary.mismatches else 0)


@app.command()
def template(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[NAME_OR_PATH]", help="Jinja file, folder or hub name. Without it: the built-in."),
    ] = None,
    everything: Annotated[
        str | None, typer.Option("--all", metavar="DIR", help="Every Jinja file of a folder, as a table.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="For Jinja files: folder or hub name. Without it: a stand-in with the file's own markers."),
    ] = None,
    history: Annotated[
        _History, typer.Option(help="frozen: prefer frozen history where that writes more roles.")
    ] = _History.EXACT,
    tools: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON file: a list of tool specs for the template to write.")
    ] = None,
    template_kwargs: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Variables of the template, such as '{\"enable_thinking\": false}'."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False,
    out: Annotated[str | None, typer.Option(metavar="FILE.json", help="Write the JSON object there.")] = None,
) -> None:
    """Compile a chat template and show its class, its table of gaps and a conversation as it writes it.

    A template that cannot be compiled is shown with the conversation that says why.

    Exit code: 0 if it compiles (with --all: if every one could be looked at), 1 if it is refused, 2 for input that
    cannot be used.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from statelesschat.inspection.looking import look, tokenizer_of
    from statelesschat.inspection.showing import print_look, print_survey
    from statelesschat.inspection.surveying import counts_of, survey, templates_in
    from statelesschat.text.progress import progress
    from statelesschat.text.tokenizer import load_tokenizer

    try:
        if everything is not None:
            if source is not None or tools is not None or template_kwargs is not None:
                raise ValueError("--all looks at the files of a folder as they are; leave the other options out")
            if history is not _History.EXACT:
                raise ValueError("--all tells which templates need frozen history by itself; leave --history out")
            if tokenizer is not None:
                load_tokenizer(tokenizer)  # once here, to say what is wrong with it
            with progress("compiling", "compiled {} of {} templates") as advance:
                looks = survey(templates_in(everything), tokenizer, advance)
            report = {"counts": counts_of(looks), "templates": [one.as_json() for one in looks]}
            _write_json(report, as_json, out)
            if not as_json:
                print_survey(looks)
            raise typer.Exit(1 if any(one.unread for one in looks) else 0)
        specs = None if tools is None else _json("--tools", Path(tools).read_text(encoding="utf-8", errors="replace"))
        variables = None if template_kwargs is None else _json("--template-kwargs", template_kwargs)
        if variables is not None and not isinstance(variables, dict):
            raise ValueError("--template-kwargs is no JSON object")
        made, described = (
            (load_tokenizer(None), "the built-in byte tokenizer") if not source else tokenizer_of(source, tokenizer)
        )
        name = source or "built-in"
        found = look(name, made, history=str(history), tools=specs, template_kwargs=variables)
    except (OSError, ValueError, TypeError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(130) from None
    _write_json(found.as_json(), as_json, out)
    if not as_json:
        print_look(found, described)
    raise typer.Exit(0 if found.compiles else 1)


@app.command()
def train(
    task: Annotated[str, typer.Option(help="What to learn; the built-in model learns arithmetic.")] = "arithmetic",
    seed: Annotated[int, typer.Option(help="Of the params, the problems' order and all sampling.")] = 0,
    updates: Annotated[
        int | None, typer.Option(help="Updates of reinforcement learning, a multiple of 10. Without it: 300.")
    ] = None,
    warm_up: Annotated[
        int | None, typer.Option(help="Updates of imitation before them, a multiple of 50. Without it: 400.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=2, help="Conversations to an update. Without it: 1024.")] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Conversations that begin with the same problem. Without it: 8.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="At its peak. Without it: 0.01.")] = None,
    held_out: Annotated[
        int | None, typer.Option(min=1, help="Held-out problems to evaluate on. Without it: 512.")
    ] = None,
    max_operand: Annotated[int | None, typer.Option(help="Largest operand. Without it: 99.")] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where everything is kept. Without it: runs/TASK-SEED-TIME, here."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, given the options it was begun with.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False,
) -> None:
    """Train a small transformer from random params on sums and differences, with a second try after a wrong answer.

    First it imitates some answers, then reinforcement learning goes on where rewards are all it gets. Held-out problems
    are never trained on; their mean reward is told for random params, before and after reinforcement learning.

    The folder holds config.json, metrics.jsonl (a line for each update), conversations.jsonl (held-out ones, with their
    rewards) and checkpoints. Ctrl-C stops after the updates that are running, and leaves a checkpoint; --resume goes on
    from it exactly.

    Exit code: 0 at the end, 1 where a loss was not finite, 2 for options that cannot be, 130 after Ctrl-C.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from statelesschat.learn.checkpoint import CheckpointError
        from statelesschat.runs.folder import FolderError, RunFolder
        from statelesschat.runs.job import Interrupted, NotFinite, train_run
        from statelesschat.runs.setup import OptionError, Options
        from statelesschat.runs.showing import display, print_summary
    except ModuleNotFoundError as error:
        if error.name not in ("flax", "optax", "orbax"):
            raise
        print(f"training needs {error.name}; install it with: pip install 'statelesschat[train]'", file=sys.stderr)
        print("without it, replay, template and score run: statelesschat --help", file=sys.stderr)
        raise typer.Exit(2) from None
    given = {
        "updates": updates, "warm_up": warm_up, "batch": batch, "repeats": repeats, "learning_rate": learning_rate,
        "held_out": held_out, "max_operand": max_operand,
    }  # fmt: skip
    options = Options(task=task, seed=seed, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    if resume and out is None:
        print("--resume goes on with the run in a folder; give it as --out", file=sys.stderr)
        raise typer.Exit(2)
    folder = out or f"runs/{task}-{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        with display() as show:
            summary = train_run(options, folder, resume, show)
    except (OptionError, FolderError, CheckpointError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    except NotFinite as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    except Interrupted as stopped:
        told = "nothing was kept yet" if not stopped.folder else (
            f"the checkpoint in {stopped.folder} holds {stopped.update} updates; go on with the same options, "
            f"--out {stopped.folder} and --resume"
        )  # fmt: skip
        print(f"interrupted; {told}", file=sys.stderr)
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        print(f"interrupted; what was saved before is in {folder}", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(summary.as_json()))
        return
    kept = RunFolder(folder)
    print_summary(summary, kept.samples(("before", "after"), 3), [line["reward"] for line in kept.metrics()])


class _Verdicts(enum.StrEnum):
    ALL = "all"
    WRONG = "wrong"
    NONE = "none"


@app.command()
def score(
    task: Annotated[str, typer.Argument(metavar="TASK", help="arithmetic, countdown or gsm8k.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSONL or JSON, or - for standard input.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub name. Without it: the built-in byte tokenizer.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Jinja file to use in place of the tokenizer's template."),
    ] = None,
    history: Annotated[
        _History, typer.Option(help="frozen: take a template that rewrites earlier turns.")
    ] = _History.EXACT,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Rows on the device at once. Without it: at most 256.")
    ] = None,
    verdicts: Annotated[
        _Verdicts, typer.Option(help="Rows to tell one by one; wrong: without full reward, or not as labelled.")
    ] = _Verdicts.ALL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False,
) -> None:
    """Score stored answers again by a task's reward, on the device, without a model.

    A row is a JSON object with what the task needs (gsm8k: question and gold, or answer with #### before the number;
    arithmetic: question and gold or answer; countdown: nums and target) and the policy's answer: response, solution,
    completion or output as text, one of these with _ids as token ids, or messages, the last of which is the answer.
    Where rows have is_correct, the share of them that is judged as labelled is told.

    Exit code: 0 if all rows were read, also where some could not be judged (they are named); 2 for input that cannot be
    used.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from statelesschat.scoring.job import score as run
    from statelesschat.scoring.showing import print_scores, print_verdicts
    from statelesschat.text.progress import progress

    try:
        with progress("scoring", "scored {} of {} rows") as advance:
            scores = run(
                task, file, tokenizer=tokenizer, chat_template=chat_template, history=str(history), batch=batch,
                advance=advance,
            )  # fmt: skip
    except ValueError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(scores.as_json(), ensure_ascii=False))
        return
    if verdicts is not _Verdicts.NONE:
        print_verdicts(scores, only_wrong=verdicts is _Verdicts.WRONG)
    print_scores(scores)


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option} is no JSON ({error})") from None


def _write_json(value: dict[str, object], as_json: bool, out: str | None) -> None:
    text = json.dumps(value, ensure_ascii=False)
    if out is not None:
        try:
            with open(out, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            print(f"{out}: {error.strerror}", file=sys.stderr)
            raise typer.Exit(2) from None
    if as_json:
        print(text)


def main() -> None:
    """Run the command line; what standard output cannot hold is escaped, and a full or closed one ends the run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="statelesschat")
    except OSError as error:
        with contextlib.suppress(OSError):
            print(f"standard output: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter fails once more, on closing it
        sys.exit(2)


if __name__ == "__main__":
    main()
