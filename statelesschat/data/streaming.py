"""Batches from sources that are streamed: prepared ahead in a thread, resumed where they stopped."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import jax
from jaxtyping import Array, Bool

from statelesschat.core.types import ChatData
from statelesschat.data.batches import Batch, Batches, Place, Plan
from statelesschat.data.encoding import long_rows
from statelesschat.data.opening import chosen_split
from statelesschat.data.options import Collate, MapRow, RowOptions, row_options
from statelesschat.data.prefetch import Prefetcher
from statelesschat.text.codec import Codec

_FORMAT = 1


def stream(
    source: Iterable[Any] | Callable[[], Iterable[Any]],
    codec: Codec,
    batch: int,
    repeats: int = 1,
    *,
    columns: Mapping[str, str] | None = None,
    map: MapRow | None = None,
    info: Iterable[str] = (),
    collate: Collate | None = None,
    on_long: str = "error",
    limit: int | None = None,
    width: int | None = None,
    drop_last: bool = False,
    index: int = 0,
    count: int = 1,
    prefetch: int = 2,
    state: Mapping[str, Any] | None = None,
) -> "Stream":
    """Batches of a source of unknown length, in its order, prepared ahead and on the device.

    An iterator over ``(data, valid)`` with the ids, the repeats and the padding of `next_batch` without shuffling,
    in one epoch. Widths are those of the config whatever the rows hold, so that one trace serves all batches. A fault
    of the source, or a row that is wrong, is raised in place of the batch that needs it.

    Args:
        source: a ``datasets.IterableDataset``, any other iterable or iterator, or a function that makes one. Rows as
            in `from_iterable`.
        codec: encodes prompts.
        batch: B.
        repeats: how many conversations begin with each row.
        columns: as in `from_iterable`.
        map: as in `from_iterable`.
        info: as in `from_iterable`; a column keeps the dtype it has in the rows read first.
        collate: as in `from_iterable`, for as many rows as a batch needs.
        on_long: as in `from_iterable`; ``"error"`` names the rows of one batch, ``"drop"`` warns at the first batch
            from which rows were left out, and `Stream.left_out` counts them.
        limit: take this many rows of the source at most.
        width: D, by default ``max_prompt_len``.
        drop_last: leave out a last batch that is not full.
        index: which of ``count`` shards this is: it takes the rows whose index in the source is ``index`` modulo
            ``count``, the only ones it encodes.
        count: shards.
        prefetch: batches that may lie ready.
        state: of `Stream.state`: go on behind the batch after which it was asked, with the same source and arguments.
            The batch size and ``prefetch`` may be others.

    Raises:
        ValueError, TypeError: arguments that cannot be. At the first batch: an empty source.

    Example:
        >>> import statelesschat as sc
        >>> from statelesschat.data import stream
        >>> tokenizer = sc.load_tokenizer(None)
        >>> config = sc.make_config(tokenizer, capacity=256, max_messages=8, max_message_len=64, max_turns=2)
        >>> with stream(iter(["2+3?", "1+1?", "Hello"]), sc.Codec(tokenizer, config), batch=2) as batches:
        ...     for data, valid in batches:
        ...         print(data.info.row_id.tolist(), valid.tolist())
        [0, 1] [True, True]
        [2, -1] [True, False]
    """
    for name, value in (("batch", batch), ("repeats", repeats), ("count", count), ("prefetch", prefetch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r}; give a whole number from 1 on")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise ValueError(f"index={index!r}; give 0 to {count - 1}, as count={count}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit={limit!r}; give a whole number from 1 on, or None for all rows")
    if isinstance(source, Mapping):
        chosen_split(source, None)
    if isinstance(source, str | bytes | set | frozenset) or not (isinstance(source, Iterable) or callable(source)):
        raise TypeError(
            f"source is a {type(source).__name__}; give an iterable of rows or a function that makes one. A dataset on "
            "the hub is opened with datasets.load_dataset(name, split=..., streaming=True)"
        )
    # The thread has a codec of its own: the caches of one are not made for two threads.
    options = row_options(
        Codec(codec.tokenizer, codec.config) if isinstance(codec, Codec) else codec,
        columns, map, info, collate, on_long, width,
    )  # fmt: skip
    plan = Plan(batch, repeats, bool(drop_last), index, count)
    place = Place() if state is None else _restored(state, plan, options)
    return Stream(lambda: _rows_from(source, place.row, limit), options, plan, place, prefetch)


class Stream:
    """An iterator over ``(ChatData, valid)``, made by `stream`; close it, or use it as a context manager.

    Attributes:
        left_out: how many rows were too long and were left out of the batches handed over.
    """

    def __init__(
        self, rows: Callable[[], Iterable[Any]], options: RowOptions, plan: Plan, place: Place, prefetch: int
    ) -> None:
        self.left_out = 0
        self._options, self._plan, self._place = options, plan, place
        default = jax.config.jax_default_device  # type: ignore[attr-defined]
        device = default if isinstance(default, jax.Device) else None  # a thread does not inherit it

        def batches(closed: Callable[[], bool]) -> Iterator[Batch]:
            for made in Batches(rows(), options, plan, place, closed):
                data, valid = jax.device_put((made.data, made.valid), device)
                yield made._replace(data=data, valid=valid)

        self._ahead = Prefetcher(batches, prefetch)

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> tuple[ChatData, Bool[Array, "B"]]:
        """The next batch; StopIteration at the end, and ever after."""
        made = next(self._ahead)
        self._place = made.place
        if made.long:
            if not self.left_out:
                warnings.warn(
                    f"{long_rows(made.long, self._options)}; left out. Later ones are only counted, in Stream.left_out",
                    UserWarning,
                    stacklevel=2,
                )
            self.left_out += len(made.long)
        if made.data is None:
            return next(self)
        return made.data, made.valid

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End the thread; nothing more comes. What was prepared ahead is forgotten, so `state` stays right."""
        self._ahead.close()

    def state(self) -> dict[str, Any]:
        """Where the stream stands, behind the batch handed over last: a small dict that JSON can hold."""
        plan, place = self._plan, self._place
        shared = {"format": _FORMAT, "repeats": plan.repeats, "index": plan.shard, "count": plan.shards}
        return shared | place._asdict() | {"info": None if place.info is None else dict(place.info)}


def _rows_from(source: Any, row: int, limit: int | None) -> Iterable[Any]:
    """The source's rows from an index on."""
    rows = source() if callable(source) and not isinstance(source, Iterable) else source
    if not isinstance(rows, Iterable):
        raise TypeError(f"the source's function returned a {type(rows).__name__}; it must return an iterable of rows")
    left = None if limit is None else max(limit - row, 0)
    skip = getattr(rows, "skip", None)
    if row and skip is not None:  # datasets skip without reading
        return itertools.islice(skip(row), left)
    each = iter(rows)
    found = sum(1 for _ in itertools.islice(each, row))
    if found < row:
        raise ValueError(f"the source has {found} rows, the state stands at row {row}; give the one it was made with")
    return itertools.islice(each, left)


def _restored(state: Mapping[str, Any], plan: Plan, options: RowOptions) -> Place:
    if not isinstance(state, Mapping) or not {"format", "repeats", "index", "count", *Place._fields} <= set(state):
        raise ValueError(f"state={state!r} is no state of a stream; give what Stream.state() returned")
    if state["format"] != _FORMAT:
        raise ValueError(f"state has format {state['format']}, this version reads {_FORMAT}")
    for name, value in (("repeats", plan.repeats), ("index", plan.shard), ("count", plan.shards)):
        if state[name] != value:
            raise ValueError(f"{name}={value}, but the state was made with {name}={state[name]}; give the same")
    if state["info"] is not None and set(state["info"]) != set(options.info):
        raise ValueError(f"info={options.info!r}, but the state was made with {sorted(state['info'])}; give the same")
    return Place(**{name: state[name] for name in Place._fields})
