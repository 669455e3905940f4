"""What commands have in common."""

import enum
import os
import sys

import typer


class History(enum.StrEnum):
    """How templates that rewrite earlier turns are taken."""

    EXACT = "exact"
    FROZEN = "frozen"


def quiet() -> None:
    """Before transformers is imported: it has advice about not finding PyTorch."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def refused(error: Exception | str) -> typer.Exit:
    """What cannot be used is told; the exit code is 2."""
    print(error, file=sys.stderr)
    return typer.Exit(2)


def interrupted(told: str = "interrupted") -> typer.Exit:
    """Ctrl-C, with its usual exit code."""
    print(told, file=sys.stderr)
    return typer.Exit(130)
