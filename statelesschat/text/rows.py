"""Functions over the rows of a batch, whose faults name their row."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def mapped(values: Sequence[Any], function: Callable[[Any], T]) -> list[T]:
    """The function of each value; of one that stands for many rows it is asked once."""
    results = {at: function(value) for at, value in {id(value): value for value in values}.items()}
    return [results[id(value)] for value in values]


def in_row(row: int, function: Callable[[], T]) -> T:
    """What a function gives for a row; its ValueError or TypeError names the row."""
    try:
        return function()
    except (ValueError, TypeError) as error:
        raise type(error)(f"row {row}: {error}") from None


def each(rows: Sequence[Any], function: Callable[[Any], T]) -> list[T]:
    """The function of each row; a ValueError or TypeError names the row it came from."""
    results: list[T] = []
    try:
        for row in rows:
            results.append(function(row))
    except (ValueError, TypeError) as error:
        raise type(error)(f"row {len(results)}: {error}") from None
    return results
