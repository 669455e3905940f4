"""Hugging Face datasets: in memory, on disk, as files; and names that cannot be had offline."""

import json
import time
from pathlib import Path
from typing import Any

import datasets
import pytest

from statelesschat.data import from_dataset, stream
from tests.data.make import codec

ROWS = {"question": ["one", "two", "three"], "gold": [1, 2, 3]}
OPTIONS: dict[str, Any] = {"columns": {"prompt": "question"}, "info": ["gold"]}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def golds(table: Any) -> list[int]:
    return table.info.task["gold"].tolist()


def test_a_dataset() -> None:
    dataset = datasets.Dataset.from_dict(ROWS)
    assert golds(from_dataset(dataset, codec(), **OPTIONS)) == [1, 2, 3]
    assert golds(from_dataset(dataset.select([2, 0]), codec(), **OPTIONS)) == [3, 1]
    assert golds(from_dataset(dataset, codec(), limit=2, **OPTIONS)) == [1, 2]


def test_histories_in_a_dataset() -> None:
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    table = from_dataset(datasets.Dataset.from_list([{"messages": history}]), codec())
    assert int((table.table[0, :, 0] >= 0).sum()) == 3


def test_a_dict_of_splits_needs_a_split() -> None:
    both = datasets.DatasetDict(train=datasets.Dataset.from_dict(ROWS), test=datasets.Dataset.from_dict(ROWS))
    assert golds(from_dataset(both, codec(), split="test", **OPTIONS)) == [1, 2, 3]
    with pytest.raises(ValueError, match="no split is named; there are 'train', 'test': pass split="):
        from_dataset(both, codec(), **OPTIONS)
    with pytest.raises(ValueError, match="there is no split 'dev'; there are 'train', 'test'"):
        from_dataset(both, codec(), split="dev", **OPTIONS)
    with pytest.raises(ValueError, match="split='train', but this is one split already"):
        from_dataset(both["train"], codec(), split="train", **OPTIONS)
    with pytest.raises(ValueError, match="no split is named"):
        stream(both, codec(), 2)


def test_a_streamed_dataset_is_sent_to_stream() -> None:
    streamed = datasets.Dataset.from_dict(ROWS).to_iterable_dataset()
    with pytest.raises(TypeError, match=r"use stream\(dataset"):
        from_dataset(streamed, codec(), **OPTIONS)
    with pytest.raises(TypeError, match=r"use stream\(dataset"):
        from_dataset(datasets.IterableDatasetDict(train=streamed), codec(), split="train", **OPTIONS)


def test_from_disk_and_files(tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_dict(ROWS)
    dataset.save_to_disk(tmp_path / "one")
    assert golds(from_dataset(tmp_path / "one", codec(), **OPTIONS)) == [1, 2, 3]
    datasets.DatasetDict(train=dataset).save_to_disk(tmp_path / "splits")
    assert golds(from_dataset(str(tmp_path / "splits"), codec(), split="train", **OPTIONS)) == [1, 2, 3]
    with pytest.raises(ValueError, match="there are 'train'"):
        from_dataset(tmp_path / "splits", codec(), **OPTIONS)
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"question": q, "gold": g}) for q, g in zip(*ROWS.values())))
    assert golds(from_dataset(file, codec(), **OPTIONS)) == [1, 2, 3]
    with pytest.raises(ValueError, match="the ending says no format"):
        from_dataset(Path(__file__), codec())


def test_what_is_no_dataset() -> None:
    with pytest.raises(TypeError, match="dataset is a list; give a datasets.Dataset.*from_iterable"):
        from_dataset(["a"], codec())
    with pytest.raises(ValueError, match="the source is empty"):
        from_dataset(datasets.Dataset.from_dict({"prompt": []}), codec())
    with pytest.raises(TypeError, match="split=3"):
        from_dataset(datasets.Dataset.from_dict(ROWS), codec(), split=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="row 0: no column 'text'.* there are question, gold"):
        from_dataset(datasets.Dataset.from_dict(ROWS), codec(), columns={"prompt": "text"})


def test_names_that_cannot_be_had() -> None:
    start = time.perf_counter()
    with pytest.raises(OSError, match="pass a local file") as caught:
        from_dataset("openai/gsm8k", codec(), split="train")
    assert "openai/gsm8k" in str(caught.value)
    assert time.perf_counter() - start < 30
    with pytest.raises(FileNotFoundError, match="there is no dataset file or folder"):
        from_dataset(Path("no/such"), codec())
    with pytest.raises(FileNotFoundError, match="there is no dataset file or folder"):
        from_dataset("./no/such/data.jsonl", codec())
