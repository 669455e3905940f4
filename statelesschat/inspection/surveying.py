"""Looking at every chat template of a folder."""

import collections
import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from statelesschat.inspection.looking import SUFFIXES, Look, look, tokenizer_of

_ENOUGH = 24  # templates from which on a second process pays for its start


def templates_in(folder: str) -> list[Path]:
    """The Jinja files of a folder and the folders in it, in order.

    Raises NotADirectoryError, or FileNotFoundError where there are none.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise NotADirectoryError(f"{folder!r} is no folder; give one that holds chat templates")
    found = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not found:
        raise FileNotFoundError(f"{folder!r} holds no {', '.join(SUFFIXES)} files; give a folder that does")
    return found


def survey(
    paths: Sequence[Path],
    tokenizer: str | None = None,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> list[Look]:
    """A look at each template, several at a time, in the order of ``paths``.

    Args:
        paths: Jinja files.
        tokenizer: the one to use for all; by default a stand-in for each with its own markers.
        advance: called with how many are done and how many there are.
    """
    workers = min(os.cpu_count() or 1, 1 + len(paths) // _ENOUGH)
    looks: list[Look] = []
    if workers == 1:
        for path in paths:
            looks.append(_look_at(path, tokenizer))
            advance(len(looks), len(paths))
        return looks
    spawn = multiprocessing.get_context("spawn")  # a fork of a process that runs jax may hang
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        for found in pool.map(_look_at, paths, [tokenizer] * len(paths), chunksize=4):
            looks.append(found)
            advance(len(looks), len(paths))
    return looks


def _look_at(path: Path, tokenizer: str | None) -> Look:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        made, _ = tokenizer_of(str(path), tokenizer)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = f"the file cannot be read ({error})"
        return Look(path.stem, "HOST_ONLY", False, False, False, "none", reason, [], 0.0, reason, unread=True)
    return look(path.stem, made, example=False)


def counts_of(looks: Sequence[Look]) -> dict[str, Any]:
    """How many compile, by class, and their share of the usable ones; those that are refused or unusable."""
    usable = [one for one in looks if one.usable]
    share = max(len(usable), 1)
    compiled = [one for one in usable if one.compiles]
    return {
        "templates": len(looks),
        "usable": len(usable),
        "compile": len(compiled),
        "compile_share": round(len(compiled) / share, 4),
        "exact": sum(one.exact for one in usable),
        "exact_share": round(sum(one.exact for one in usable) / share, 4),
        "frozen": sum(one.compiles and not one.exact for one in usable),
        "refused": len(usable) - len(compiled),
        "unusable": len(looks) - len(usable),
        "with_tool_calls": sum(one.tools not in ("none", "results") for one in compiled),
        "with_calls_read": sum(one.tools not in ("none", "results", "unread") for one in compiled),
        "classes": dict(sorted(collections.Counter(one.kind for one in looks).items())),
        "median_s": sorted(one.seconds for one in looks)[len(looks) // 2],
    }
