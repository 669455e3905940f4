"""A run's folder: what was asked for, what each update brought, conversations, and the checkpoint."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from statelesschat.learn.checkpoint import latest_checkpoint

_LINES = ("metrics.jsonl", "conversations.jsonl")


class FolderError(ValueError):
    """A folder that a run cannot use."""


class RunFolder:
    """``config.json``, ``metrics.jsonl`` (a line for each update), ``conversations.jsonl`` and ``checkpoint/``."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def checkpoint(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoint"

    def open(self, config: Mapping[str, Any], resume: bool) -> None:
        """Make the folder for a new run, or look at what there is of one to go on with.

        Raises:
            FolderError: a new run in a folder that has one, no run to go on with, or a folder that cannot be written.
        """
        try:
            has_run = latest_checkpoint(self.checkpoint) is not None
            if resume and not has_run:
                raise FolderError(f"{self.path}: no checkpoint to resume from; leave --resume out to begin a run")
            if not resume and has_run:
                raise FolderError(f"{self.path}: holds a run already; give --resume to go on with it, or another --out")
            self.path.mkdir(parents=True, exist_ok=True)
            if not has_run:  # what a run left that ended before its first checkpoint tells of nothing that goes on
                for name in _LINES:
                    (self.path / name).unlink(missing_ok=True)
                (self.path / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise FolderError(f"{self.path}: {error.strerror or error}") from None

    def note(self, more: Mapping[str, Any]) -> None:
        """Add what became of the run to ``config.json``."""
        path = self.path / "config.json"
        path.write_text(json.dumps({**self.noted(), **more}, indent=2) + "\n", encoding="utf-8")

    def noted(self) -> dict[str, Any]:
        """What ``config.json`` holds."""
        return json.loads((self.path / "config.json").read_text(encoding="utf-8"))

    def add_metrics(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append a line for each update."""
        self._append("metrics.jsonl", lines)

    def add_conversations(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append conversations."""
        self._append("conversations.jsonl", lines)

    def metrics(self) -> list[dict[str, Any]]:
        """All lines so far."""
        return self._read("metrics.jsonl")

    def looks(self) -> dict[str, float]:
        """Mean held-out reward at each stage that was looked at."""
        lines = self._read("conversations.jsonl")
        return {line["stage"]: line["mean_reward"] for line in lines if "mean_reward" in line}

    def samples(self, stages: Iterable[str], rows: int) -> list[dict[str, Any]]:
        """The first conversations of each of some stages."""
        lines = self._read("conversations.jsonl")
        return [line for stage in stages for line in [line for line in lines if line["stage"] == stage][:rows]]

    def drop_after(self, update: int) -> None:
        """Forget what is told of updates behind a checkpoint: they are made again."""
        for name in _LINES:
            kept = [line for line in self._read(name) if line["update"] <= update]
            part = self.path / f"{name}.part"
            part.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            part.replace(self.path / name)

    def _append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(dict(line), ensure_ascii=False) + "\n" for line in lines)

    def _read(self, name: str) -> list[dict[str, Any]]:
        """Lines that are whole: of a run that was killed the last one may not be."""
        path, found = self.path / name, []
        if not path.exists():
            return found
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return found
