"""What is measured, and the loop in which a process of its own measures it."""

import importlib
import importlib.metadata
import json
import statistics
import sys
import time

from field import work

_ENOUGH = 0.3


class Contestant:
    """Some turns of a conversation over a batch, to be run again and again."""

    turns: int

    def prepare(self) -> None:
        """Go back to the beginning; not timed."""

    def run(self) -> None:
        """Take all turns; return when they are done."""

    def check(self) -> None:
        """AssertionError unless they were all taken."""


def serve(module: str, packages: list[str], options: work.Options) -> None:
    """Make a module's contestants, then run the one named on each line of standard input and print its seconds.

    The first line printed gives the names, or the package that is missing.
    """
    out = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is not for the one who asks
    try:
        versions = {package: importlib.metadata.version(package) for package in packages}
        contestants = importlib.import_module(module).contestants(options)
    except (ImportError, importlib.metadata.PackageNotFoundError) as error:
        print(json.dumps({"missing": error.name or str(error)}), file=out, flush=True)
        return
    print(json.dumps({"names": list(contestants), "versions": versions}), file=out, flush=True)
    for line in sys.stdin:
        contestant = contestants[line.strip()]
        print(json.dumps({"seconds": _seconds(contestant)}), file=out, flush=True)


def _seconds(contestant: Contestant) -> float:
    """Of one turn: the median over as many runs as fit into `_ENOUGH` seconds, for a short run is a cold one."""
    times: list[float] = []
    while not times or sum(times) < _ENOUGH:
        contestant.prepare()
        start = time.perf_counter()
        contestant.run()
        times.append(time.perf_counter() - start)
    contestant.check()
    return statistics.median(times) / contestant.turns
