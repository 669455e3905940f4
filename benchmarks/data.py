"""What drawing rows costs on device, beside a restart and beside loaders that feed the same rows. Prints JSON lines.

    python benchmarks/data.py [--rounds 30]

The table has 50,000 prompts of 128 to 256 ids; a batch has 1024 rows, each prompt 8 times. ``draw``: in a donated scan,
`restart` of all rows from one fixed batch, and the same with `next_batch` before it. The fixed batch goes through an
optimisation barrier together with the states that the loop carries, so that no part of the restart can be moved out of
the loop. ``loader``: rows per second of `next_batch` in a scan that carries the batch, so that each one is written,
and of torch's DataLoader and grain with the same rows, padded beforehand, the same repeats and a shuffle:

* ``usual``: row by row, as trainers have it (a sampler that repeats each row, the default collation; two
  workers on two cores were slower); grain with ``batch``, with and without its threads;
* ``getitems``: the same sampler, the rows of a batch fetched by one index operation;
* ``best``: whole batches of indices from the sampler, so that Python does nothing for a row; grain with batches as its
  elements. This is the gather alone, which memory bounds for all alike.

The loaders' batches are left in their own memory; handing them to jax is not counted against them.

The things compared take turns, round by round; a figure is the minimum over the rounds. Without torch or grain those
lines are left out.
"""

import argparse
import dataclasses
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from core import make_template

import statelesschat as sc
from statelesschat.core.types import Column, Finish, Kind
from statelesschat.data import Cursor, RowInfo, make_cursor, next_batch

ROWS, WIDTH, BATCH, REPEATS, STEPS = 50_000, 256, 1024, 8, 16
Run = Callable[[], None]


def make_table() -> sc.ChatData:
    """Prompts of random ids, as a source would give them."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(WIDTH // 2, WIDTH + 1, ROWS).astype(np.int32)
    tokens = rng.integers(30, 90, (ROWS, WIDTH)).astype(np.int32)
    messages = np.full((ROWS, 1, len(Column)), -1, np.int32)
    messages[:, 0] = [Kind.USER, 0, 3, 0, 2, 0, Kind.START, Kind.GENERATE, -1, Finish.NONE]
    messages[:, 0, Column.PIECE_END] = lengths - 5
    ids = np.arange(ROWS, dtype=np.int32)
    info = RowInfo(ids, ids, 0 * ids, {"gold": ids})
    limits = np.full(ROWS, 4, np.int32)
    return jax.tree.map(jnp.asarray, sc.ChatData(tokens, lengths, messages, limits, info))


def make_config() -> sc.ChatConfig:
    """A buffer of 4096 ids."""
    return sc.ChatConfig(
        make_template(),
        capacity=4096,
        max_messages=16,
        max_message_len=64,
        max_prompt_len=WIDTH,
        max_response_len=64,
        max_turns=4,
    )


class Restarts:
    """Restarts of all rows, scanned and donated: from a fixed batch, or from one that is drawn."""

    def __init__(self, table: sc.ChatData, draw: bool) -> None:
        self.table, self.draw, self.cursor = table, draw, make_cursor(0)
        _, self.data, _ = next_batch(self.cursor, table, BATCH, REPEATS)
        states = jax.vmap(sc.reset, (None, 0))(sc.init(make_config()), self.data)
        self.states = jax.tree.map(jnp.copy, states)
        self.where = jnp.ones(BATCH, bool)
        arguments = self.states, self.cursor, table if draw else self.data, self.where
        self.compiled = jax.jit(self._scan, donate_argnums=0).lower(*arguments).compile()

    def _scan(self, states: sc.ChatState, cursor: Cursor, rows: sc.ChatData, where: jax.Array) -> Any:
        def body(carry: Any, _: None) -> tuple[Any, None]:
            states, cursor = carry
            data = rows
            if self.draw:
                cursor, data, _ = next_batch(cursor, rows, BATCH, REPEATS)
                here, counts = jax.lax.optimization_barrier((where, states.counts))
            else:
                data, here, counts = jax.lax.optimization_barrier((data, where, states.counts))
            states = dataclasses.replace(states, counts=counts)
            return (jax.vmap(sc.restart)(states, data, here), cursor), None

        return jax.lax.scan(body, (states, cursor), None, length=STEPS)[0]

    def __call__(self) -> None:
        """All steps, to the end."""
        rows = self.table if self.draw else self.data
        self.states, self.cursor = self.compiled(self.states, self.cursor, rows, self.where)
        jax.block_until_ready(self.states)


def draws(table: sc.ChatData) -> Run:
    """Batches alone, carried so that each of them is written."""

    def scan(cursor: Cursor, data: sc.ChatData, table: sc.ChatData) -> Any:
        def body(carry: Any, _: None) -> tuple[Any, None]:
            cursor, _ = carry
            cursor, data, _ = next_batch(cursor, table, BATCH, REPEATS)
            return (cursor, data), None

        return jax.lax.scan(body, (cursor, data), None, length=STEPS)[0]

    cursor = make_cursor(0)
    state = cursor, jax.tree.map(jnp.copy, next_batch(cursor, table, BATCH, REPEATS)[1])
    compiled = jax.jit(scan, donate_argnums=1).lower(*state, table).compile()

    def run() -> None:
        nonlocal state
        state = compiled(*state, table)
        jax.block_until_ready(state)

    return run


def steps_of(batches: Callable[[], Iterator[Any]]) -> Run:
    """As many batches as a scan has steps, from an iterator that is begun again at its end."""
    iterator = batches()

    def run() -> None:
        nonlocal iterator
        for _ in range(STEPS):
            batch = next(iterator, None)
            if batch is None:
                iterator = batches()
                batch = next(iterator)
            assert len(batch["tokens"]) == BATCH

    return run


class Rows:
    """A map-style dataset: one row at a time, or all of a batch by one index operation."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        """Rows."""
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        """One row."""
        return {name: tensor[row] for name, tensor in self.tensors.items()}


class Batches(Rows):
    """The same with the rows of a batch fetched together."""

    def __getitems__(self, rows: Any) -> dict[str, Any]:
        """All rows of a batch."""
        import torch

        return {name: tensor.index_select(0, torch.as_tensor(rows)) for name, tensor in self.tensors.items()}


class Repeated:
    """A sampler of single rows, each several times."""

    def __iter__(self) -> Iterator[int]:
        """Rows of an epoch."""
        for row in np.random.default_rng().permutation(ROWS).tolist():
            yield from [row] * REPEATS

    def __len__(self) -> int:
        """Slots of an epoch."""
        return ROWS * REPEATS


class RepeatedBatches:
    """A sampler of whole batches, without a Python number for each row."""

    def __iter__(self) -> Iterator[Any]:
        """Batches of an epoch."""
        import torch

        order = torch.randperm(ROWS).repeat_interleave(REPEATS)
        return iter(order[: len(order) // BATCH * BATCH].split(BATCH))

    def __len__(self) -> int:
        """Batches in an epoch."""
        return ROWS * REPEATS // BATCH


def as_it_is(batch: Any) -> Any:
    return batch


def torch_loaders(arrays: dict[str, np.ndarray]) -> dict[str, Run]:
    """DataLoaders over the same arrays."""
    import torch
    from torch.utils.data import BatchSampler, DataLoader

    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    rows: Any = Rows(tensors)
    together: Any = Batches(tensors)
    single: Any = Repeated()
    by_batch = BatchSampler(single, BATCH, drop_last=True)
    loaders = {
        "torch_usual": DataLoader(rows, batch_size=BATCH, sampler=single, drop_last=True),
        "torch_getitems": DataLoader(together, batch_sampler=by_batch, collate_fn=as_it_is),
        "torch_best": DataLoader(together, batch_sampler=RepeatedBatches(), collate_fn=as_it_is),  # type: ignore
    }
    return {name: steps_of(loader.__iter__) for name, loader in loaders.items()}


def grain_loaders(arrays: dict[str, np.ndarray]) -> dict[str, Run]:
    """Grain datasets over the same arrays, whose shuffle is grain's own index permutation."""
    import grain
    from grain.experimental import index_shuffle

    def place(slot: int) -> int:
        return index_shuffle(slot // REPEATS, max_index=ROWS - 1, seed=0, rounds=4)

    def batch(at: int) -> dict[str, Any]:
        rows = np.repeat([place(slot) for slot in range(at, at + BATCH, REPEATS)], REPEATS)
        return {name: array[rows] for name, array in arrays.items()}

    def row(slot: int) -> dict[str, Any]:
        at = place(slot)
        return {name: array[at] for name, array in arrays.items()}

    # As many batches ready as a round takes: what lies ready is used up before the clock starts.
    reading = {"": grain.ReadOptions(prefetch_buffer_size=STEPS), "_no_threads": grain.ReadOptions(num_threads=0)}
    slots = grain.MapDataset.range(ROWS * REPEATS).map(row).batch(BATCH, drop_remainder=True)
    starts = grain.MapDataset.range(0, ROWS * REPEATS - BATCH + 1, BATCH).map(batch)
    return {
        name + how: steps_of(lambda dataset=dataset, options=options: iter(dataset.to_iter_dataset(options)))
        for name, dataset in (("grain_usual", slots), ("grain_best", starts))
        for how, options in reading.items()
    }


def measure(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Seconds of one call of each, the minimum over interleaved rounds."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def sustained(runs: dict[str, Run], rounds: int, least: float = 0.1) -> dict[str, float]:
    """Seconds of one call of each over calls that take a while together, after one that is not timed."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            run()
            start, calls = time.perf_counter(), 0
            while time.perf_counter() - start < least:
                run()
                calls += 1
            best[name] = min(best[name], (time.perf_counter() - start) / calls)
    return best


def main() -> None:
    """Print every figure as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    device = jax.devices()[0]
    about = {"device": f"{device.platform}:{device.device_kind}", "jax": jax.__version__, "batch": BATCH, "rows": ROWS}
    table = make_table()
    seconds = measure({"fixed": Restarts(table, False), "drawn": Restarts(table, True)}, options.rounds)
    figure = {
        "benchmark": "draw",
        "us_per_restart": seconds["fixed"] / STEPS * 1e6,
        "us_per_draw_and_restart": seconds["drawn"] / STEPS * 1e6,
        "times": seconds["drawn"] / seconds["fixed"],
    }
    print(json.dumps(about | figure), flush=True)

    arrays = {
        "tokens": np.asarray(table.tokens),
        "length": np.asarray(table.length),
        "table": np.asarray(table.table),
        "turn_limit": np.asarray(table.turn_limit),
        "row_id": np.asarray(table.info.row_id),
        "gold": np.asarray(table.info.task["gold"]),
    }
    runs = {"next_batch": draws(table)}
    for name, loaders in (("torch", torch_loaders), ("grain", grain_loaders)):
        if importlib.util.find_spec(name) is not None:
            runs |= loaders(arrays)
    seconds = sustained(runs, max(3, options.rounds // 3))
    rates = {name: STEPS * BATCH / spent for name, spent in seconds.items()}
    for name, rate in rates.items():
        figure = {
            "benchmark": "loader",
            "name": name,
            "rows_per_s": rate,
            "times_faster": rates["next_batch"] / rate,
        }
        print(json.dumps(about | figure), flush=True)


if __name__ == "__main__":
    main()
