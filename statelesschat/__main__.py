"""The command line: ``python -m statelesschat``."""

import contextlib
import io
import os
import sys

import typer

from statelesschat.commands.replay import replay
from statelesschat.commands.score import score
from statelesschat.commands.template import template
from statelesschat.commands.train import train

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="StatelessChat: chat environments for reinforcement learning in JAX. Without a command it trains.",
)
for _command in (train, replay, template, score):
    app.command()(_command)


@app.callback(invoke_without_command=True)
def _bare(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        train()


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
