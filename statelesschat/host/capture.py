"""Output of a command: its head and its tail, however much it is."""


class Capture:
    r"""Keeps at most a few times ``most`` bytes of what is added.

    Example:
        >>> capture = Capture(60)
        >>> capture.add(b"x" * 100)
        >>> capture.text()
        b'xxxxxxxxxxxxxxxx\n[68 of 100 bytes left out]\nxxxxxxxxxxxxxxxx'
    """

    def __init__(self, most: int) -> None:
        self._most = max(most, 0)
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """More of it."""
        self.total += len(data)
        room = self._most - len(self._head)
        if room > 0:
            self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if len(self._tail) > 2 * self._most + (1 << 16):
            del self._tail[: len(self._tail) - self._most]

    @property
    def truncated(self) -> bool:
        """Whether `text` leaves any out."""
        return self.total > self._most

    def text(self) -> bytes:
        """All of it, or head and tail with a note of the bytes between; at most ``most`` bytes."""
        if not self.truncated:
            return bytes(self._head)
        note = b""
        for _ in range(2):  # the count has to be that of what stands beside it
            kept = self._most - len(note)
            note = b"\n[%d of %d bytes left out]\n" % (self.total - kept, self.total)
        kept = self._most - len(note)
        if kept < 0:
            return bytes(self._head)
        note = b"\n[%d of %d bytes left out]\n" % (self.total - kept, self.total)
        tail = (bytes(self._head) + bytes(self._tail))[-(kept // 2) :] if kept > 1 else b""
        return bytes(self._head[: kept - kept // 2]) + note + tail
