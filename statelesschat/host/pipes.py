"""Pipes and open files for another process, and waiting for them."""

import array
import contextlib
import fcntl
import os
import select
import termios
import time

CHUNK = 1 << 16
_LEAST = 20  # bash uses 8 and 9 for its pipes, and 10 to 19 to keep others while a command runs


def pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Both ends, each closed by a stack, with numbers that are not in the way of those bash uses."""
    read, write = os.pipe()
    return _raised(read, reader), _raised(write, writer)


def file(content: bytes, stack: contextlib.ExitStack) -> int:
    """An open file in memory, to be read from its beginning."""
    fd = _raised(os.memfd_create("statelesschat"), stack)
    with open(fd, "wb", closefd=False) as opened:
        opened.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read(fd: int) -> bytes:
    """What is there now; nothing at the end, and where there is nothing yet."""
    try:
        return os.read(fd, CHUNK)
    except BlockingIOError:
        return b""


def held(fd: int) -> int:
    """How many bytes are in a pipe."""
    number = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, number)
    return number[0]


def wait(fd: int, event: int, seconds: float) -> None:
    """Until an event of an open file, or the end of its other side."""
    poll = select.poll()
    poll.register(fd, event)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if any(happened & (event | select.POLLHUP) for _, happened in poll.poll(left * 1000)):
            return


def _raised(fd: int, stack: contextlib.ExitStack) -> int:
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LEAST)
    finally:
        os.close(fd)
    stack.callback(os.close, high)
    return high
