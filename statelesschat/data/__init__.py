"""Rows on the device and the index arithmetic that deals them out."""

from statelesschat.data.cursor import Cursor as Cursor
from statelesschat.data.cursor import make_cursor as make_cursor
from statelesschat.data.drawing import next_batch as next_batch
from statelesschat.data.rows import RowInfo as RowInfo
from statelesschat.data.rows import Table as Table
from statelesschat.data.rows import take_rows as take_rows
from statelesschat.data.sources import from_dataset as from_dataset
from statelesschat.data.sources import from_iterable as from_iterable
from statelesschat.data.sources import from_jsonl as from_jsonl
from statelesschat.data.streaming import Stream as Stream
from statelesschat.data.streaming import stream as stream
