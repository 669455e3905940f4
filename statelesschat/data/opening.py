"""Hugging Face datasets from wherever they are, as one in-memory split."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HUB_TIMEOUT = 10.0  # seconds
_FILES = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
_WORK_OFFLINE = (
    "To work offline, download it on a connected machine with `hf download --repo-type dataset NAME --local-dir "
    "FOLDER` and pass that folder, or pass a local file (.jsonl, .csv, .parquet)"
)


def open_dataset(source: Any, split: str | None, name: str | None = None) -> Any:
    """A ``datasets.Dataset``; see `from_dataset` for what a source may be and what is raised."""
    if split is not None and not isinstance(split, str):
        raise TypeError(f"split={split!r}; give the name of one split")
    if not isinstance(source, str | os.PathLike):
        return _one_split(source, split)
    path = Path(source).expanduser()
    if path.exists():
        return _from_path(path, split, name)
    if isinstance(source, os.PathLike) or not _is_hub_name(source):
        raise FileNotFoundError(f"there is no dataset file or folder {str(path)!r}. {_WORK_OFFLINE}")
    return _one_split(_from_hub(source, split, name), None)


def chosen_split(source: Mapping[Any, Any], split: str | None) -> Any:
    """One of a dict of splits; ValueError says which there are."""
    if split is None or split not in source:
        named = "no split is named" if split is None else f"there is no split {split!r}"
        raise ValueError(f"{named}; there are {', '.join(map(repr, source))}: pass split=... with one of them")
    return source[split]


def _one_split(source: Any, split: str | None) -> Any:
    import datasets

    if isinstance(source, datasets.DatasetDict | datasets.IterableDatasetDict):
        source, split = chosen_split(source, split), None
    if isinstance(source, datasets.IterableDataset):
        raise TypeError("this dataset is streamed, so its length is not known; use stream(dataset, codec, ...)")
    if not isinstance(source, datasets.Dataset):
        raise TypeError(
            f"dataset is a {type(source).__name__}; give a datasets.Dataset, a path or a hub name. Rows in memory go "
            "to from_iterable"
        )
    if split is not None:
        raise ValueError(f"split={split!r}, but this is one split already, without a dict of them; leave split out")
    return source


def _from_path(path: Path, split: str | None, name: str | None) -> Any:
    import datasets

    if path.is_file():
        kind = _FILES.get(path.suffix.lower())
        if kind is None:
            raise ValueError(f"{str(path)!r}: the ending says no format that is read here: {', '.join(_FILES)}")
        return datasets.load_dataset(kind, data_files=str(path), split=split or "train")
    if any((path / file).is_file() for file in ("dataset_dict.json", "state.json")):
        return _one_split(datasets.load_from_disk(str(path)), split)
    return _one_split(datasets.load_dataset(str(path), name, split=split), None)


def _from_hub(source: str, split: str | None, name: str | None) -> Any:
    import datasets
    from datasets import config
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(source, timeout=_HUB_TIMEOUT)  # One request says whether the hub answers; no retries.
    except Exception as error:
        online = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")
        if not Path(config.HF_DATASETS_CACHE, source.replace("/", "___")).is_dir():
            raise OSError(
                f"no file or folder is named {source!r}; the local Hugging Face cache has no dataset of that name; and "
                f"the hub did not give it ({online}). {_WORK_OFFLINE.replace('NAME', source)}"
            ) from None
    return datasets.load_dataset(source, name, split=split)


def _is_hub_name(name: str) -> bool:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
