"""What ``import statelesschat`` brings with it."""

import json
import subprocess
import sys

HEAVY = ("transformers", "datasets", "torch", "tokenizers", "huggingface_hub", "rich", "typer", "flax")


def test_import_loads_nothing_heavy_and_starts_no_backend() -> None:
    code = (
        "import json, sys, statelesschat, statelesschat.testing; from jax._src import xla_bridge;"
        f"print(json.dumps([[m for m in {HEAVY!r} if m in sys.modules], xla_bridge.backends_are_initialized()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], False]
