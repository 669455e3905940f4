"""Progress of long work, on standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(doing: str, done_line: str) -> Iterator[Callable[[int, int], None]]:
    """A function of (done, total) that draws a bar on a terminal, and elsewhere tells every tenth of the work.

    ``doing`` stands before the bar ("compiling"); ``done_line`` is the line told elsewhere, with two places for numbers
    ("compiled {} of {} templates").
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(done_line)
        return
    columns = TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    def __init__(self, line: str) -> None:
        self._line, self._told = line, 0

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth > self._told:
            self._told = tenth
            print(self._line.format(done, total), file=sys.stderr, flush=True)
