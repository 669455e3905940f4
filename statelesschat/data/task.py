"""What rewards need of a row, as arrays: numbers from columns, or what a user's function makes of a chunk of rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from statelesschat.data.options import RowError, RowOptions
from statelesschat.data.reading import Row

_WIDE = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
_INT32 = np.iinfo(np.int32)


def wide_task(rows: Sequence[Row], options: RowOptions) -> Any:
    """The task of a chunk of rows, leading axis len(rows), before columns are narrowed; None where there is none."""
    if options.collate is not None:
        return _collated(rows, options)
    if not options.info:
        return None
    return {
        name: _column(name, [row.fields[name] for row in rows], [row.index for row in rows], options.place)
        for name in options.info
    }


def narrowed(tasks: Sequence[Any], ids: np.ndarray, options: RowOptions, like: Mapping[str, Any] | None = None) -> Any:
    """The tasks of several chunks as one: bools, int32 or float32; ValueError where they do not agree.

    Args:
        tasks: of `wide_task`.
        ids: all their rows' indices in the source.
        options: the source's.
        like: for each column the dtype and shape of a row that came earlier, which these must have too.
    """
    if options.collate is not None:
        return _joined_trees(tasks)
    if not options.info:
        return None
    joined = {}
    for name in options.info:
        parts = [task[name] for task in tasks]
        odd = next((i for i, part in enumerate(parts) if part.shape[1:] != parts[0].shape[1:]), None)
        if odd is not None:
            first = sum(len(part) for part in parts[:odd])
            raise ValueError(_shapes(options.place(int(ids[first])), name, parts[odd].shape[1:], parts[0].shape[1:]))
        kinds = {part.dtype.kind for part in parts}
        if "b" in kinds and len(kinds) > 1:
            at = next(i for i, part in enumerate(parts) if part.dtype.kind != parts[0].dtype.kind)
            raise TypeError(_mixed(options.place(int(ids[sum(len(part) for part in parts[:at])])), name))
        joined[name] = _narrow(name, np.concatenate(parts), ids, options.place, (like or {}).get(name))
    return joined


def specs(task: Any) -> dict[str, Any]:
    """For each column its dtype and a row's shape, as JSON can hold them."""
    return {name: [str(column.dtype), list(column.shape[1:])] for name, column in task.items()}


def _column(name: str, values: list[Any], ids: list[int], place: Callable[[int], str]) -> np.ndarray:
    arrays = []
    for index, value in zip(ids, values, strict=True):
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError):
            array = np.asarray(None)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{place(index)}: {name} is {value}, outside int32; scale it, or hash it")
        if array.dtype.kind not in _WIDE or array.dtype == np.uint64:
            raise TypeError(f"{place(index)}: {name} is {_what(value)}; give a number or a list of numbers in each row "
                            "(map=... can make one), or make the arrays with collate=...")  # fmt: skip
        if arrays and array.shape != arrays[0].shape:
            raise ValueError(_shapes(place(index), name, array.shape, arrays[0].shape))
        if arrays and (array.dtype.kind == "b") != (arrays[0].dtype.kind == "b"):
            raise TypeError(_mixed(place(index), name))
        arrays.append(array)
    kind = "f" if any(array.dtype.kind == "f" for array in arrays) else arrays[0].dtype.kind
    return np.stack([array.astype(_WIDE[kind]) for array in arrays])


def _narrow(name: str, array: np.ndarray, ids: np.ndarray, place: Callable[[int], str], like: Any) -> np.ndarray:
    if like is not None:
        dtype, shape = np.dtype(like[0]), tuple(like[1])
        if array.shape[1:] != shape:
            raise ValueError(_shapes(place(int(ids[0])), name, array.shape[1:], shape))
        if array.dtype.kind != dtype.kind and (array.dtype.kind, dtype.kind) != ("i", "f"):
            raise TypeError(
                f"{place(int(ids[0]))}: {name} here is {array.dtype.name}, in earlier rows {dtype.name}, which a "
                "stream keeps; write one kind of number in all rows (map=... can)"
            )
        array = array.astype(_WIDE[dtype.kind])
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "i":
        _refuse((array < _INT32.min) | (array > _INT32.max), name, array, ids, place, "int32")
        return array.astype(np.int32)
    with np.errstate(over="ignore"):
        short = array.astype(np.float32)
    _refuse(np.isinf(short) & ~np.isinf(array), name, array, ids, place, "float32")
    return short


def _refuse(
    wrong: np.ndarray, name: str, array: np.ndarray, ids: np.ndarray, place: Callable[[int], str], dtype: str
) -> None:
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        raise ValueError(f"{place(int(ids[at[0]]))}: {name} is {array[at]}, outside {dtype}; scale it, or hash it")


def _collated(rows: Sequence[Row], options: RowOptions) -> Any:
    assert options.collate is not None
    where = f"collate, for rows {rows[0].index} to {rows[-1].index}"
    try:
        made = options.collate([row.fields for row in rows])
    except RowError as error:
        place = where if error.row is None else options.place(error.row)
        raise ValueError(f"{place}: {error}") from None
    except Exception as error:
        raise ValueError(f"{where}: raised {type(error).__name__}: {error}") from error
    if not jax.tree.leaves(made):
        raise TypeError(f"{where}: returned {made!r}; return arrays, or a dict of arrays, with one entry for each row")
    return jax.tree.map_with_path(
        lambda path, leaf: _leaf(jax.tree_util.keystr(path), leaf, len(rows), where),
        made,
        is_leaf=lambda x: isinstance(x, list),  # a list is meant as an array
    )


def _leaf(path: str, leaf: Any, count: int, where: str) -> np.ndarray:
    name = f"{where}: what it returned{path}"
    try:
        array = np.asarray(leaf)
    except (ValueError, TypeError) as error:
        raise TypeError(f"{name} is no array: {error}") from None
    if array.dtype.kind not in _WIDE:
        raise TypeError(f"{name} is {array.dtype}; the device holds bools, integers and floats")
    if array.shape[:1] != (count,):
        raise ValueError(f"{name} has shape {array.shape}; its leading axis must be the {count} rows")
    if array.dtype.itemsize < 8:
        return array
    dtype = np.dtype(np.float32 if array.dtype.kind == "f" else np.int32)
    with np.errstate(over="ignore"):
        short = array.astype(dtype)
    if (np.isinf(short) & ~np.isinf(array)).any() or (dtype.kind == "i" and (short != array).any()):
        raise ValueError(f"{name} holds numbers outside {dtype}; scale them, or hash them")
    return short


def _joined_trees(tasks: Sequence[Any]) -> Any:
    for task in tasks[1:]:
        check_alike(tasks[0], task)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *tasks)


def check_alike(first: Any, other: Any) -> None:
    """Raise ValueError unless two chunks' trees differ in nothing but the number of rows."""
    if jax.tree.structure(first) != jax.tree.structure(other):
        raise ValueError(
            f"collate returned {jax.tree.structure(first)} for the first rows and {jax.tree.structure(other)} for "
            "later ones; return the same structure for all"
        )
    for (path, one), two in zip(jax.tree.leaves_with_path(first), jax.tree.leaves(other), strict=True):
        if one.shape[1:] != two.shape[1:] or one.dtype != two.dtype:
            raise ValueError(
                f"collate returned{jax.tree_util.keystr(path)} as {one.dtype}{list(one.shape[1:])} for the first rows "
                f"and {two.dtype}{list(two.shape[1:])} for later ones; pad to one width and keep one dtype"
            )


def _shapes(place: str, name: str, shape: tuple[int, ...], other: tuple[int, ...]) -> str:
    return f"{place}: {name} has shape {list(shape)}, in rows before {list(other)}; pad to one length (map=... can)"


def _mixed(place: str, name: str) -> str:
    return f"{place}: {name} is a bool in some rows and a number in others; write one of the two (map=... can)"


def _what(value: Any) -> str:
    if value is None:
        return "None"
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'}, a {type(value).__name__}"
