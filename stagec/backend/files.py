"""Files of a local directory, and errors of the disk as diagnostics."""

import contextlib
import errno
import os
import secrets
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stagec.backend.errors import TraceError
from stagec.reading import read_file

_NO_LINKS = {errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS, errno.EOPNOTSUPP}

_WRITE_BYTES = 128 << 10
MOST_BUNDLE_BYTES = 4 << 30
"""Larger writes make Linux look for larger free pages, which on a machine that has run for a while
takes up to four times as long."""

UNFINISHED = ".stagec-new-"
"""How the name of a file begins that is not yet whole."""

Data = bytes | memoryview


class Files(Protocol):
    """Named files in one place. Small, and the same in another process or on another machine."""

    def write(self, name: str, data: Data) -> None: ...

    def link(self, existing: str, name: str) -> bool:
        """Make `name` the same file as `existing`; false where that cannot be."""
        ...

    def matches(self, name: str, size: int, crc: int) -> bool:
        """Whether the file is there and has this size and CRC-32."""
        ...


@dataclass(frozen=True)
class LocalFiles:
    """Files of a local directory. With `replace`, each appears whole, in place of an earlier one."""

    directory: str
    replace: bool = False
    shown: str = ""
    """What messages call the directory, if not by its name."""

    def write(self, name: str, data: Data) -> None:
        path = f"{self.directory}/{name}"
        try:
            if self.replace:
                _replace(path, data)
            else:
                create(path, data)
        except OSError as error:
            raise self._error(error, name) from None

    def link(self, existing: str, name: str) -> bool:
        path = f"{self.directory}/{name}"
        try:
            if self.replace:
                Path(path).unlink(missing_ok=True)
            os.link(f"{self.directory}/{existing}", path)
        except FileExistsError:
            Path(path).unlink()
            return self.link(existing, name)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise self._error(error, name) from None
        return True

    def matches(self, name: str, size: int, crc: int) -> bool:
        try:
            with open(f"{self.directory}/{name}", "rb") as file:
                if os.fstat(file.fileno()).st_size != size:
                    return False
                found = 0
                while data := file.read(1 << 20):
                    found = zlib.crc32(data, found)
        except OSError:
            return False
        return found == crc

    def _error(self, error: OSError, name: str) -> TraceError:
        shown = os.path.join(self.shown or self.directory, name)
        return disk_error(error, shown, of_ranks=True)


def write_whole(path: str, data: Data) -> None:
    """Write one file so that it appears complete or not at all; a device or a pipe is given the bytes."""
    no_directory(path)
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            file = _open_special(path)
            try:
                _put(file, data)
            finally:
                os.close(file)
        else:
            _replace(os.path.realpath(path), data)
    except OSError as error:
        raise disk_error(error, path) from None


def check_place(path: str) -> None:
    """What `write_whole` would refuse, where that is known before there is anything to write."""
    no_directory(path)
    directory = os.path.dirname(os.path.realpath(path))
    code = 0
    if not os.path.isdir(directory):
        code = errno.ENOTDIR if os.path.exists(directory) else errno.ENOENT
    elif not os.path.exists(path) and not os.access(directory, os.W_OK | os.X_OK):
        code = errno.EACCES
    if code:
        raise disk_error(OSError(code, os.strerror(code)), path)


def check_directory(path: str) -> None:
    """Likewise of a directory to write traces in, which is made if it is not there."""
    there, missing = nearest(path)
    if os.path.isfile(path):
        raise TraceError("E0601", f"`{path}` is a file", help="name a directory")
    if not os.path.isdir(there):
        raise disk_error(OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)), path)
    if missing != there and not os.access(there, os.W_OK | os.X_OK):
        raise disk_error(OSError(errno.EACCES, os.strerror(errno.EACCES)), path)


def no_directory(path: str) -> None:
    if os.path.isdir(path):
        raise TraceError("E0603", f"`{path}` is a directory", help="name a file")


WAIT_FOR_READER = 2.0
"""Seconds that somebody has to open the other end of a pipe."""


def _open_special(path: str) -> int:
    """A device or a pipe, to write into. E0603 for a pipe that nobody reads: it would be waited for without end."""
    until = time.monotonic() + WAIT_FOR_READER
    while True:
        try:
            file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                message = f"nobody reads the pipe `{path}`"
                raise TraceError("E0603", message, help="start its reader first") from None
            time.sleep(0.05)
        else:
            os.set_blocking(file, True)
            return file


def _replace(path: str, data: Data) -> None:
    """Write beside `path`, under a name that nobody knows, and take its place; nothing is left if that fails."""
    directory = os.path.dirname(path) or "."
    beside = f"{directory}/{UNFINISHED}{secrets.token_hex(8)}"
    try:
        create(beside, data)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def create(path: str, data: Data) -> None:
    """Make a file; never write into one that is there, which may be a link, or linked with others."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        file = os.open(path, flags, 0o666)
    except FileExistsError:
        os.unlink(path)
        file = os.open(path, flags, 0o666)
    try:
        _put(file, data)
    finally:
        os.close(file)


def _put(file: int, data: Data) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest[:_WRITE_BYTES]) :]


def read_whole(path: str) -> bytes:
    try:
        return read_file(path, MOST_BUNDLE_BYTES)
    except OSError as error:
        raise disk_error(error, path) from None


def nearest(path: str) -> tuple[str, str]:
    """The last part of a path that is there, and the first that is not: the path itself if all but that is there."""
    there, missing = path.rstrip("/") or "/", path
    while not os.path.exists(there) and there not in (".", "/"):
        there, missing = os.path.dirname(there) or ".", there
    return there, missing


def disk_error(error: OSError, path: str, *, of_ranks: bool = False) -> TraceError:
    """What the disk refused, in words: about the part of the path that is at fault. Of traces `of_ranks` there could be fewer."""
    smaller = "free some space, or choose another directory"
    if of_ranks:
        smaller = "free some space, choose another directory, or write fewer ranks (`--ranks`)"
    there, missing = nearest(path)
    match error.errno:
        case errno.ENOTDIR | errno.EEXIST if os.path.isfile(there):
            return TraceError(
                "E0603",
                f"`{there}` is a file, not a directory",
                help="choose another directory" if there != path else "name another file",
            )
        case errno.EACCES | errno.EPERM if there != path:
            return TraceError(
                "E0603",
                f"`{there}` is not yours to write in",
                note=f"`{missing}` is to be made there",
                help="choose another directory",
            )
        case errno.ENOENT if missing.rstrip("/") != path.rstrip("/"):
            return TraceError(
                "E0603", f"there is no directory `{missing}`", help="make it, or choose another"
            )
        case errno.ENOSPC:
            return TraceError(
                "E0603",
                f"the disk is full: cannot write `{path}`",
                help=smaller,
            )
        case errno.EDQUOT:
            return TraceError(
                "E0603",
                f"your disk quota is used up: cannot write `{path}`",
                help=smaller,
            )
        case errno.EROFS:
            return TraceError(
                "E0603", f"`{path}` is on a read-only file system", help="choose another directory"
            )
        case errno.EACCES | errno.EPERM:
            return TraceError(
                "E0603", f"`{path}` is not yours to write or read", help="choose another directory"
            )
        case errno.ENOENT:
            return TraceError("E0603", f"there is no `{path}`", help="name one that is there")
        case 0:  # of `read_file`, which says why in words
            message = f"`{path}` cannot be read: {error.strerror}"
            return TraceError("E0603", message, help="name another file")
        case _:
            reason = (error.strerror or str(error)).lower()
            message = f"the disk failed at `{path}`: {reason}"
            return TraceError("E0603", message, help="try again, or on another disk")
