"""What a run of `train` is asked for."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asks for. What a run has to have alike to be gone on with is `about`."""

    task: str = "arithmetic"
    seed: int = 0
    updates: int = 120
    warm_up: int = 600
    batch: int = 4096
    repeats: int = 8
    learning_rate: float = 0.01
    held_out: int = 512
    max_operand: int = 99

    def about(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)
