"""What ``import statelesschat`` costs over ``import jax``. Prints a JSON line.

    python benchmarks/imports.py [--rounds 15]

Fresh interpreters import one or the other by turns; the figure is the ratio of the medians.
"""

import argparse
import json
import statistics
import subprocess
import sys

HEAVY = ("transformers", "datasets", "torch")


def seconds(module: str) -> tuple[float, list[str]]:
    """Time of one import in a fresh interpreter, and which heavy modules it loaded."""
    code = (
        f"import json, sys, time; t = time.perf_counter(); import {module}; t = time.perf_counter() - t;"
        f"print(json.dumps([t, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    took, loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    return took, loaded


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    seconds("statelesschat")
    times: dict[str, list[float]] = {"jax": [], "statelesschat": []}
    heavy: set[str] = set()
    for _ in range(rounds):
        for module, taken in times.items():
            took, loaded = seconds(module)
            taken.append(took)
            heavy |= set(loaded)
    medians = {module: statistics.median(taken) for module, taken in times.items()}
    figure = {
        "benchmark": "import",
        "ms_jax": medians["jax"] * 1e3,
        "ms_statelesschat": medians["statelesschat"] * 1e3,
        "times": medians["statelesschat"] / medians["jax"],
        "heavy_modules": sorted(heavy),
    }
    print(json.dumps(figure))


if __name__ == "__main__":
    main()
