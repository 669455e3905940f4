"""What is measured, and the loop in which a process of its own measures it."""

import importlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

_ENOUGH = 0.3
# Torch joins ids in all of its threads, which wait for each other: where something else wants a core, `step` took 15 ms
# instead of 1. Half of the cores is its better case there.
_THREADS = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2))}


class Contestant:
    """Some turns of a conversation over a batch, to be run again and again."""

    turns: int

    def prepare(self) -> None:
        """Go back to the beginning; not timed."""

    def run(self) -> None:
        """Take all turns; return when they are done."""

    def check(self) -> None:
        """AssertionError unless they were all taken."""


def serve(module: str, packages: list[str], options: Any) -> None:
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


class Process:
    """A framework in a process of its own, which runs what it is told to and waits.

    Args:
        script: the benchmark, which calls `serve` when it is given ``--serve NAME``.
        name: of the framework.
        arguments: further ones.
        environment: variables, by default as many threads as suit torch where others work too.
    """

    def __init__(
        self, script: str, name: str, arguments: Sequence[str], environment: Mapping[str, str] = _THREADS
    ) -> None:
        self.script, self.name = script, name
        self.pipe = subprocess.Popen(
            [sys.executable, script, "--serve", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"TRANSFORMERS_VERBOSITY": "error", **environment, **os.environ},
        )
        hello = self._read()
        self.missing: str | None = hello.get("missing")
        self.names: list[str] = hello.get("names", [])
        self.versions: dict[str, str] = hello.get("versions", {})

    def seconds(self, contestant: str) -> float:
        """Of one turn, the mean over one run of all of them."""
        assert self.pipe.stdin is not None
        print(contestant, file=self.pipe.stdin, flush=True)
        return self._read()["seconds"]

    def close(self) -> None:
        """End it."""
        assert self.pipe.stdin is not None
        self.pipe.stdin.close()
        self.pipe.wait()

    def _read(self) -> dict[str, Any]:
        assert self.pipe.stdout is not None
        line = self.pipe.stdout.readline()
        if not line:
            raise SystemExit(f"{self.script}: the process that measures {self.name} ended; see above")
        return json.loads(line)
