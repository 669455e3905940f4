"""``train``: the whole loop, from random params to held-out rewards."""

import json
import sys
import time
from typing import Annotated

import typer

from statelesschat.commands.shared import interrupted, quiet, refused
from statelesschat.runs.options import Options


def train(
    task: Annotated[str, typer.Option(help="What to learn; the built-in model learns arithmetic.")] = Options.task,
    seed: Annotated[int, typer.Option(help="Of the params, the problems' order and all sampling.")] = Options.seed,
    updates: Annotated[int, typer.Option(help="Reinforcement learning updates, a multiple of 10.")] = Options.updates,
    warm_up: Annotated[
        int, typer.Option(help="Updates of imitation before them, at most, a multiple of 10.")
    ] = Options.warm_up,
    batch: Annotated[int, typer.Option(min=2, help="Conversations to an update.")] = Options.batch,
    repeats: Annotated[int, typer.Option(help="Conversations that begin with the same problem.")] = Options.repeats,
    learning_rate: Annotated[float, typer.Option(help="At its peak.")] = Options.learning_rate,
    held_out: Annotated[int, typer.Option(min=1, help="Held-out problems to evaluate on.")] = Options.held_out,
    max_operand: Annotated[int, typer.Option(help="Largest operand.")] = Options.max_operand,
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

    First it imitates right answers, until it has one in eight right; from there rewards are all it gets. Held-out
    problems are never trained on; their mean reward is told for random params, before and after reinforcement learning.

    The folder holds config.json, metrics.jsonl (a line for each update), conversations.jsonl (held-out ones, with their
    rewards) and checkpoints. Ctrl-C stops after the updates that are running, and leaves a checkpoint; --resume goes on
    from it exactly.

    Exit code: 0 at the end, 1 where a loss was not finite, 2 for options that cannot be, 130 after Ctrl-C.
    """
    quiet()
    try:
        from statelesschat.learn.checkpoint import CheckpointError
        from statelesschat.runs.folder import FolderError, RunFolder
        from statelesschat.runs.job import Interrupted, NotFinite, train_run
        from statelesschat.runs.setup import OptionError
        from statelesschat.runs.showing import display, print_summary
    except ModuleNotFoundError as error:
        if error.name not in ("flax", "optax", "orbax"):
            raise
        raise refused(
            f"training needs {error.name}; install it with: pip install 'statelesschat[train]'\n"
            "without it, replay, template and score run: statelesschat --help"
        ) from None
    options = Options(task, seed, updates, warm_up, batch, repeats, learning_rate, held_out, max_operand)
    if resume and out is None:
        raise refused("--resume goes on with the run in a folder; give it as --out")
    folder = out or f"runs/{task}-{seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        with display() as show:
            summary = train_run(options, folder, resume, show)
    except (OptionError, FolderError, CheckpointError) as error:
        raise refused(error) from None
    except NotFinite as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    except Interrupted as stopped:
        told = "nothing was kept yet" if not stopped.folder else (
            f"the checkpoint in {stopped.folder} holds {stopped.update} updates; go on with the same options, "
            f"--out {stopped.folder} and --resume"
        )  # fmt: skip
        raise interrupted(f"interrupted; {told}") from None
    except KeyboardInterrupt:
        raise interrupted(f"interrupted; what was saved before is in {folder}") from None
    if as_json:
        print(json.dumps(summary.as_json()))
        return
    kept = RunFolder(folder)
    print_summary(summary, kept.samples(("before", "after"), 3), [line["reward"] for line in kept.metrics()])
