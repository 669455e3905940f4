"""What the fresh world of a session is made of, and how it is started."""

import dataclasses
import io
import os
import tarfile
from collections.abc import Mapping

from statelesschat.host import reaper, sandbox
from statelesschat.host.sandbox import Isolation, Limits
from statelesschat.host.transport import Transport

_COMMON = {"LANG": "C.UTF-8", "TERM": "dumb", "SHELL": "/bin/bash"}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The same fresh world as often as it is wanted.

    Args:
        isolation: of which kind.
        limits: what it may take.
        env: further variables of its environment.
        read_only: further folders of the host that are seen.
        archive: what `pack` gave.
    """

    isolation: Isolation
    limits: Limits
    env: Mapping[str, str]
    read_only: tuple[str, ...]
    archive: bytes

    def start(self) -> Transport:
        """Start a bash; `first_line` has to be asked of it before anything else.

        Raises:
            OSError: it cannot be started.
        """
        return self._sandboxed() if self.isolation == "bubblewrap" else self._bare()

    def first_line(self, transport: Transport, seed: int) -> bytes:
        """The line that puts the pipes where they belong, sets limits and unpacks the files."""
        status, files = transport.status_fd, transport.data.get("files")
        parts = [
            f"exec 8>&{status} {status}>&- 9>&1 >/dev/null 2>&1",
            "echo 1000 >/proc/$$/oom_score_adj",  # if memory runs out, it is not the program that the kernel ends
            sandbox.limit_lines(self.isolation, self.limits),
            "history -c; set +H +o history",
            "unset HISTFILE OLDPWD",
            "umask 022",
            f"RANDOM={seed % (1 << 31)}",
        ]
        if files is not None:
            parts += [f"tar -x -f - <&{files} 2>&9 8>&- 9>&-", "__rc=$?", f"exec {files}>&-", "(exit $__rc)"]
        return "; ".join([*parts, ""]).encode()

    def _sandboxed(self) -> Transport:
        etc = sandbox.etc_files()
        base = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": sandbox.WORKSPACE, "USER": "user"}
        env = {**base, **_COMMON, **self.env}

        def argv(fds: Mapping[str, int]) -> list[str]:
            made = {path: fds[path] for path in etc}
            return sandbox.command(self.isolation, self.limits, env, self.read_only, made)

        reaper.reap_once()
        mark = reaper.new_mark()

        def clean(struck: bool) -> None:
            if struck:  # bubblewrap may have had no time to tie its child to itself
                reaper.kill_marked(mark)

        data = self._data() | etc
        return Transport(argv, env={reaper.MARKER: mark}, cwd="/", data=data, nested=True, clean=clean)

    def _bare(self) -> Transport:
        reaper.reap_once()
        folder = reaper.make_folder()
        mark = reaper.mark_of(folder)
        home, scratch = os.path.join(folder, "workspace"), os.path.join(folder, "tmp")

        def clean(struck: bool) -> None:
            reaper.kill_marked(mark)
            reaper.remove_folder(folder)

        def argv(_: Mapping[str, int]) -> list[str]:
            return sandbox.command(self.isolation, self.limits, {}, (), {})

        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "TMPDIR": scratch, reaper.MARKER: mark}
        env = {**base, **_COMMON, **self.env}
        try:
            os.mkdir(home)
            os.mkdir(scratch)
            return Transport(argv, env=env, cwd=home, data=self._data(), nested=False, clean=clean)
        except BaseException:
            clean(True)
            raise

    def _data(self) -> dict[str, bytes]:
        return {"files": self.archive} if self.archive else {}


def pack(files: Mapping[str, bytes | str]) -> bytes:
    """A tar of files, by path; empty if there are none. Those that begin with ``#!`` are executable.

    Raises:
        ValueError: a path that leads out of the workspace.
    """
    if not files:
        return b""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            parts = path.split("/")
            if os.path.isabs(path) or ".." in parts or parts[-1] in ("", ".") or "\0" in path:
                raise ValueError(f"files has {path!r}; paths are relative to the workspace and stay in it")
            content = content.encode() if isinstance(content, str) else bytes(content)
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
