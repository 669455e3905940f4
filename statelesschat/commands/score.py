"""``score``: stored answers, judged again."""

import enum
import json
from typing import Annotated

import typer

from statelesschat.commands.shared import History, interrupted, quiet, refused


class Verdicts(enum.StrEnum):
    """Which rows are told one by one."""

    ALL = "all"
    WRONG = "wrong"
    NONE = "none"


def score(
    task: Annotated[str, typer.Argument(metavar="TASK", help="arithmetic, countdown, gsm8k, math or ifeval.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSONL or JSON, or - for standard input.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or hub name. Without it: the built-in byte tokenizer.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Jinja file to use in place of the tokenizer's template."),
    ] = None,
    history: Annotated[
        History, typer.Option(help="frozen: take a template that rewrites earlier turns.")
    ] = History.EXACT,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Rows on the device at once. Without it: at most 256.")
    ] = None,
    verdicts: Annotated[
        Verdicts, typer.Option(help="Rows to tell one by one; wrong: without full reward, or not as labelled.")
    ] = Verdicts.ALL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")] = False,
) -> None:
    """Score stored answers again by a task's reward, on the device, without a model.

    A row is a JSON object with what the task needs (gsm8k: question and gold, or answer with #### before the number;
    arithmetic: question and gold or answer; countdown: nums and target; math: problem and gold or answer; ifeval:
    prompt, instruction_id_list and kwargs) and the policy's answer: response, solution, completion or output as text,
    one of these with _ids as token ids, or messages, the last of which is the answer. Where rows have is_correct, the
    share of them that is judged as labelled is told. math and ifeval need pip install 'statelesschat[graders]'.

    Exit code: 0 if all rows were read, also where some could not be judged (they are named); 2 for input that cannot be
    used.
    """
    quiet()
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
        raise refused(error) from None
    except KeyboardInterrupt:
        raise interrupted() from None
    if as_json:
        print(json.dumps(scores.as_json(), ensure_ascii=False))
        return
    if verdicts is not Verdicts.NONE:
        print_verdicts(scores, only_wrong=verdicts is Verdicts.WRONG)
    print_scores(scores)
