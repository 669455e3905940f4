"""``replay``: conversations through the core, compared with the template."""

import dataclasses
import json
import sys
from typing import Annotated

import typer

from statelesschat.commands.shared import History, interrupted, quiet


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
        History,
        typer.Option(help="frozen: take a template that rewrites earlier turns; they stay as sampled."),
    ] = History.EXACT,
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
    quiet()
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
        raise interrupted() from None
    print_troubles(tally, summary.file)
    if as_json:
        print(json.dumps(dataclasses.asdict(summary), ensure_ascii=False))
    else:
        print_shown(tally)
        print_summary(summary)
    raise typer.Exit(1 if summary.mismatches else 0)
