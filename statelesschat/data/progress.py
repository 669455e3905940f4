"""A progress bar for sources that take a while."""

import contextlib
import sys
from collections.abc import Callable, Iterator

_FEW = 4096  # rows that are encoded before anybody wonders


@contextlib.contextmanager
def encoding_progress(total: int | None, wanted: bool) -> Iterator[Callable[[int], None]]:
    """A function to tell how many rows are done; it draws a bar on a terminal's standard error once they are many."""
    if not wanted or not sys.stderr.isatty() or (total is not None and total <= _FEW):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("encoding rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with contextlib.ExitStack() as stack:
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        task = bar.add_task("encoding rows", total=total)
        began = False

        def tell(done: int) -> None:
            nonlocal began
            if not began and (total is not None or done > _FEW):
                began = True
                stack.enter_context(bar)
            bar.update(task, completed=done)

        yield tell
