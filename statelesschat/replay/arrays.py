"""The arrays of finished conversations, for a trainer."""

from pathlib import Path
from typing import Any

import numpy as np

from statelesschat.core.config import ChatConfig
from statelesschat.core.types import Column, Count
from statelesschat.replay.driving import Ending
from statelesschat.text.jsonfile import InputError


class Arrays:
    """Collects the endings of batches and writes them to one npz file, in the order of the input.

    Axes: ``N`` conversations, ``L`` ids of the longest, ``M`` messages. What lies at and beyond a row's length is the
    template's pad id in ``tokens``, False in ``loss_mask``, -1 in ``role_ids`` and ``turn_ids``.

    * ``tokens`` int32[N, L], ``length`` int32[N], ``loss_mask`` bool[N, L];
    * ``role_ids`` int32[N, L], a `Kind`; ``turn_ids`` int32[N, L], counted from 0;
    * ``table`` int32[N, M, 10], a line for each message, -1 where there is none; ``columns`` names its columns;
    * ``messages`` int32[N], messages of each row; ``turns`` int32[N], answers;
    * ``finish`` int32[N], the `Finish` of the last answer, 0 without one; ``status`` int32[N], a `Status`;
    * ``line`` int32[N], where the conversation begins in its file;
    * ``pad_id``, ``stop_ids``: of the template.

    A conversation whose first prompt is wider than the capacity has no row.
    """

    def __init__(self, config: ChatConfig) -> None:
        self.config = config
        self._rows: dict[int, dict[str, Any]] = {}

    def add(self, end: Ending) -> None:
        """Keep the rows of a batch, each at its own length."""
        for i, row in enumerate(end.rows):
            counts = end.counts[i]
            length, messages = int(counts[Count.LENGTH]), int(counts[Count.MESSAGES])
            finishes = end.table[i, :messages, Column.FINISH]
            answers = np.flatnonzero(end.table[i, :messages, Column.SAMPLED] >= 0)
            self._rows[row.script.number] = {
                "tokens": end.tokens[i, :length].copy(),
                "loss_mask": end.loss_mask[i, :length].copy(),
                "role_ids": end.role_ids[i, :length].copy(),
                "turn_ids": end.turn_ids[i, :length].copy(),
                "table": end.table[i, :messages].copy(),
                "length": length,
                "messages": messages,
                "turns": int(counts[Count.TURN]),
                "finish": int(finishes[answers[-1]]) if answers.size else 0,
                "status": int(counts[Count.STATUS]),
                "line": row.script.line,
            }

    def gathered(self) -> dict[str, np.ndarray]:
        """All arrays, padded to the longest row."""
        rows = [self._rows[number] for number in sorted(self._rows)]
        pads = {"tokens": self.config.template.pad_id, "loss_mask": False, "role_ids": -1, "turn_ids": -1}
        longest = max((row["length"] for row in rows), default=0)
        most = max((row["messages"] for row in rows), default=0)
        arrays: dict[str, np.ndarray] = {}
        for name, pad in pads.items():
            arrays[name] = np.full((len(rows), longest), pad, bool if pad is False else np.int32)
        arrays["table"] = np.full((len(rows), most, len(Column)), -1, np.int32)
        for name in (*pads, "table"):
            for i, row in enumerate(rows):
                arrays[name][i, : len(row[name])] = row[name]
        for name in ("length", "messages", "turns", "finish", "status", "line"):
            arrays[name] = np.asarray([row[name] for row in rows], np.int32)
        arrays["columns"] = np.asarray([column.name.lower() for column in Column])
        arrays["pad_id"] = np.asarray(self.config.template.pad_id, np.int32)
        arrays["stop_ids"] = np.asarray(self.config.template.stop_ids, np.int32)
        return arrays

    def write(self, path: str) -> None:
        """Write the file; a file of that name is replaced only when the new one is complete."""
        unfinished = Path(f"{path}.unfinished")
        try:
            with unfinished.open("wb") as file:
                np.savez_compressed(file, **self.gathered())  # type: ignore[arg-type]
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def check_writable(path: str, source: str | None = None) -> None:
    """InputError where a file could not be written or is the input, found before the work is done."""
    target = Path(path)
    if not target.name:
        raise InputError(f"--out {path!r} names no file; give one that ends in .npz")
    if source is not None and target.exists() and Path(source).exists() and target.samefile(source):
        raise InputError(f"{path}: --out is the input itself; give another name")
    if target.suffix != ".npz":
        raise InputError(f"{path}: --out writes an npz file; name it {target.with_suffix('.npz')}")
    if target.is_dir() or not target.parent.is_dir():
        what = "is a folder" if target.is_dir() else f"the folder {target.parent} does not exist"
        raise InputError(f"{path}: cannot be written ({what})")
