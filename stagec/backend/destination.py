"""Where a trace set appears: as a whole, or not at all.

Locally, files are written to a hidden directory beside the wanted one, which takes its name when
everything is there. An earlier set of ours is replaced so; other files are never touched without
`force`. In a store behind fsspec there is no such rename: there the manifest, removed first and
written last, says whether a set is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stagec.backend.errors import TraceError
from stagec.backend.files import UNFINISHED, Files, LocalFiles, create, disk_error, nearest
from stagec.backend.manifest import COMM_GROUP, NAME, beside_traces, own_files, parse_manifest
from stagec.backend.remote import RemoteFiles, StorageOptions
from stagec.pictures.scales import DECIMAL_BYTES, in_unit
from stagec.reading import read_file

MOST_MANIFEST_BYTES = 256 << 20

MARKER = "stagec-unfinished.json"
"""Says which job the files belong to, as long as it is unfinished."""


INNER = ".stagec-unfinished"
"""What a directory is called in another one that cannot itself be renamed."""


@dataclass(frozen=True)
class WrittenSet:
    """Which set is written."""

    digest: str
    model: str
    beside: tuple[str, ...] = ()
    """What is written beside the traces."""

    @staticmethod
    def parse(text: bytes) -> WrittenSet | None:
        """The inverse of `note`."""
        try:
            said = json.loads(text)
            beside = tuple(str(name) for name in said.get("beside", ()))
            return WrittenSet(str(said["digest"]), str(said["model"]), beside)
        except (AttributeError, ValueError, TypeError, KeyError):
            return None

    @staticmethod
    def described(manifest: bytes) -> WrittenSet | None:
        """The set that a manifest is of."""
        said = parse_manifest(manifest)
        if said is None:
            return None
        return WrittenSet(
            str(said.get("digest")), str(said.get("model")), tuple(beside_traces(said))
        )

    @property
    def note(self) -> bytes:
        """What the marker of an unfinished set says."""
        beside = {"beside": list(self.beside)} if self.beside else {}
        return json.dumps({"digest": self.digest, "model": self.model, **beside}).encode()

    def writes(self, name: str) -> bool:
        """Whether a file may be of the set, by its name."""
        pattern = rf"{re.escape(self.model)}\.\d+\.(et|json)|{re.escape(COMM_GROUP)}"
        return name in self.beside or re.fullmatch(pattern, name) is not None


class Destination(Protocol):
    """One set of files on its way."""

    @property
    def files(self) -> Files: ...

    @property
    def resumed(self) -> bool:
        """Some of the set may be there already."""
        ...

    def check_space(self, num_bytes: int, num_files: int) -> None:
        """E0602 if the disk has no room for so much more."""
        ...

    def commit(self, manifest: bytes) -> None:
        """All files are there: show them."""
        ...

    def keep(self) -> None:
        """Interrupted: leave what there is, out of sight, to be resumed."""
        ...

    def discard(self) -> None:
        """Failed: leave nothing."""
        ...


def open_destination(
    out: str, written: WrittenSet, *, force: bool, resume: bool, options: StorageOptions = ()
) -> Destination:
    """Prepare to write a set to a directory or URL."""
    scheme, separator, rest = out.partition("://")
    if not separator:
        return LocalDestination(out, written, force=force, resume=resume)
    if scheme in ("file", "local"):
        return LocalDestination(rest, written, force=force, resume=resume)
    files = RemoteFiles(out.rstrip("/"), options)
    return RemoteDestination(files, written, force=force, resume=resume)


def check_destination(out: str, *, force: bool) -> None:
    """What `destination` would refuse of a directory, where that is known before there are traces."""
    if "://" in out or force:
        return
    if foreign := _contents(Path(os.path.realpath(out)), out)[1]:
        raise _foreign_error(out, foreign)


class LocalDestination:
    """A directory."""

    def __init__(self, out: str, written: WrittenSet, *, force: bool, resume: bool) -> None:
        self.final = Path(os.path.realpath(out))
        self.shown = out
        self.written = written
        self.in_place = self.resumed = self._started = False
        self._handle = -1
        try:
            self._recover()
            self.own, foreign = _contents(self.final, out)
            if foreign and not force:
                raise _foreign_error(out, foreign)
            _refuse_clash(out, foreign, written)
            self.staging, self.merge = self._choose_staging(bool(foreign))
        except OSError as error:
            raise disk_error(error, out, of_ranks=True) from None
        try:
            self.resumed = self._prepare(resume)
        except FileNotFoundError:
            # Parents are made too, so that none of them can be: `/proc` is such a place.
            self.discard()
            there, missing = nearest(out)
            raise TraceError(
                "E0603",
                f"no directory can be made in `{there}`",
                note=f"`{missing}` is to be made there",
                help="choose another directory",
            ) from None
        except TraceError:
            self.discard()
            raise
        except OSError as error:
            self.discard()
            raise disk_error(error, out, of_ranks=True) from None
        self.files = LocalFiles(str(self.staging), replace=self.in_place, shown=out)

    def check_space(self, num_bytes: int, num_files: int) -> None:
        disk = os.statvfs(self.staging)
        free = disk.f_bavail * disk.f_frsize
        if self.resumed:
            there = {e.inode(): e.stat().st_size for e in os.scandir(self.staging)}
            num_bytes, num_files = num_bytes - sum(there.values()), num_files - len(there)
        if num_bytes > free:
            raise TraceError(
                "E0602",
                f"the traces need {in_unit(num_bytes, DECIMAL_BYTES)}, the disk of `{self.shown}` has "
                f"{in_unit(free, DECIMAL_BYTES)} free",
                help="choose another directory, `--names short`, fewer `--ranks`, or a `--bundle`",
            )
        if disk.f_files and num_files > disk.f_favail:
            raise TraceError(
                "E0602",
                f"the traces are {num_files} files, the disk of `{self.shown}` has room for "
                f"{disk.f_favail} more",
                help="choose another directory, fewer `--ranks`, or a `--bundle`",
            )

    def commit(self, manifest: bytes) -> None:
        self.files.write(NAME, manifest)
        try:
            (self.staging / MARKER).unlink(missing_ok=True)
            if self.in_place:
                pass
            elif self.merge:
                self._move_files()
            else:
                self._swap()
        except OSError as error:
            raise disk_error(error, self.shown, of_ranks=True) from None
        self._unlock()

    def keep(self) -> None:
        self._unlock()

    def discard(self) -> None:
        if not self.in_place and (self._started or self.resumed):
            _remove(self.staging)
        self._unlock()

    def _recover(self) -> None:
        """Finish or undo a swap that was interrupted between its two renames."""
        if not os.path.lexists(self._old):
            return
        if not _is_set(self._old):
            raise _in_the_way(self._old)
        if self.final.exists() or not os.listdir(self._old):
            _remove(self._old)
        else:
            os.rename(self._old, self.final)

    @property
    def _old(self) -> Path:
        return self.final.parent / f".{self.final.name}.stagec-old"

    def _choose_staging(self, foreign: bool) -> tuple[Path, bool]:
        """Where to write, and whether files are then moved one by one into the directory, which is
        so if it holds other files or cannot itself be renamed."""
        beside = self.final.parent / f".{self.final.name}.stagec-unfinished"
        if self.final.exists() and (
            os.path.ismount(self.final)
            or self.final == Path.cwd()
            or not os.access(self.final.parent, os.W_OK)
        ):
            return self.final / INNER, True
        return beside, foreign

    def _prepare(self, resume: bool) -> bool:
        """Make or take over the staging directory; whether it may hold files to be kept."""
        if resume and not self.staging.exists() and self._is_complete():
            self.staging, self.in_place = self.final, True
            self._lock()
            return True
        self.staging.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.staging.mkdir()
        except FileExistsError:
            if not _is_own_directory(self.staging):
                raise _in_the_way(self.staging) from None
        self._lock()
        marker = self.staging / MARKER
        if resume and marker.exists():
            unfinished = WrittenSet.parse(_short(marker))
            if unfinished == self.written:
                return True
            self._unlock()
            raise _other_set_error(self.shown)
        self._clear(marker)
        self._started = True
        create(str(self.staging / MARKER), self.written.note)
        return False

    def _clear(self, marker: Path) -> None:
        """Remove what an earlier run of ours left in the staging directory, and nothing else."""
        names = sorted(os.listdir(self.staging))
        earlier = WrittenSet.parse(_short(marker)) if MARKER in names else None
        for name in names:
            path = self.staging / name
            is_file = stat.S_ISREG(os.lstat(path).st_mode)
            known = name in (MARKER, NAME) or name.startswith(UNFINISHED)
            if not is_file or not (known or (earlier and earlier.writes(name))):
                self._unlock()
                raise _in_the_way(self.staging)
        for name in (*(n for n in names if n != MARKER), *(n for n in names if n == MARKER)):
            os.unlink(self.staging / name)

    def _is_complete(self) -> bool:
        if NAME not in self.own:
            return False
        return WrittenSet.described(_short(self.final / NAME)) == self.written

    def _lock(self) -> None:
        """Keep other runs away from the staging directory."""
        self._handle = os.open(self.staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._handle), os.lstat(self.staging)):
                raise BlockingIOError  # that run has just ended, and the directory with it
        except (BlockingIOError, FileNotFoundError):
            self._unlock()
            raise TraceError(
                "E0611", f"another run is writing to `{self.shown}`", help="wait for it to end"
            ) from None

    def _unlock(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def _swap(self) -> None:
        if self.own:
            os.rename(self.final, self._old)
        os.rename(self.staging, self.final)
        if self.own:
            _remove(self._old)

    def _move_files(self) -> None:
        """Without its manifest the directory holds no set, until the new one arrives, last."""
        (self.final / NAME).unlink(missing_ok=True)
        new = sorted(entry.name for entry in os.scandir(self.staging))
        for name in sorted(self.own.difference(new, {NAME})):
            (self.final / name).unlink(missing_ok=True)
        for name in [*(n for n in new if n != NAME), NAME]:
            os.replace(self.staging / name, self.final / name)
        self.staging.rmdir()


def _is_own_directory(path: Path) -> bool:
    """Whether a path is a directory of this user's, and no link to one."""
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _short(path: Path) -> bytes:
    """A manifest or a marker; `OSError` of what is no regular file."""
    return read_file(path, MOST_MANIFEST_BYTES)


def _is_set(path: Path) -> bool:
    """Whether a directory has a set of ours, or what is left of one, and nothing else."""
    if not _is_own_directory(path):
        return False
    if not os.listdir(path):
        return True
    try:
        manifest = parse_manifest(_short(path / NAME)) or {"files": {}}
    except OSError:
        return False
    return {*os.listdir(path)} <= {*manifest["files"], *beside_traces(manifest), NAME}


def _remove(directory: Path) -> None:
    """Remove a directory of ours. Whatever else is in it than files stays, and the directory with it.

    What says whose it is goes last: one that is half removed is still known.
    """
    with contextlib.suppress(OSError):
        files = [e for e in os.scandir(directory) if e.is_file(follow_symlinks=False)]
        for entry in sorted(files, key=lambda e: e.name in (NAME, MARKER)):
            os.unlink(entry.path)
        os.rmdir(directory)


def _in_the_way(path: Path) -> TraceError:
    return TraceError(
        "E0601",
        f"`{path}` is in the way",
        note="traces are first written there, and something is there that is none of stagec's",
        help="move it away, or name another directory",
    )


class RemoteDestination:
    """A prefix of an object store."""

    def __init__(
        self, files: RemoteFiles, written: WrittenSet, *, force: bool, resume: bool
    ) -> None:
        self.files = files
        self.written = written
        there = set(files.names())
        described = files.read(NAME) or b""
        unfinished = WrittenSet.parse(files.read(MARKER) or b"")
        self.earlier = there & own_files(described, files)
        if unfinished:
            self.earlier |= {name for name in there if unfinished.writes(name)} | {MARKER}
        foreign = sorted(there - self.earlier)
        if foreign and not force:
            raise _foreign_error(files.url, foreign)
        _refuse_clash(files.url, foreign, written)
        if resume and unfinished and unfinished != written:
            raise _other_set_error(files.url)
        self.resumed = resume and written in (WrittenSet.described(described), unfinished)
        files.make_directory()
        files.write(MARKER, written.note)
        files.remove([NAME])

    def check_space(self, num_bytes: int, num_files: int) -> None:
        """A store does not say."""

    def commit(self, manifest: bytes) -> None:
        new = own_files(manifest, self.files)
        self.files.remove(sorted(self.earlier - new - {MARKER}))
        self.files.write(NAME, manifest)
        self.files.remove([MARKER])

    def keep(self) -> None:
        """Without a manifest it is no set; the marker says whose files these are."""

    def discard(self) -> None:
        with contextlib.suppress(TraceError):
            written = [name for name in self.files.names() if self.written.writes(name)]
            self.files.remove([*written, MARKER])


def _other_set_error(out: str) -> TraceError:
    return TraceError(
        "E0605",
        f"what is unfinished at `{out}` is another trace set",
        note="the model, the plan, an option or stagec's version has changed since",
        help="write all of it: leave out `--resume`",
    )


def _foreign_error(out: str, foreign: list[str]) -> TraceError:
    shown = ", ".join(f"`{name}`" for name in foreign[:3])
    more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
    return TraceError(
        "E0601",
        f"`{out}` holds files that are not a trace set of stagec",
        note=f"{shown}{more}",
        help="name another directory, or add `--force` to write beside them",
    )


def _contents(final: Path, shown: str) -> tuple[set[str], list[str]]:
    """Which files of a directory are a set of ours, and which are not."""
    if not final.exists():
        return set(), []
    if not final.is_dir():
        raise TraceError("E0601", f"`{shown}` is a file", help="name a directory")
    there = {entry.name for entry in os.scandir(final)} - {INNER}
    own: set[str] = set()
    if NAME in there:
        own = own_files(_short(final / NAME), LocalFiles(str(final)))
    return own & there, sorted(there - own)


def _refuse_clash(out: str, foreign: list[str], written: WrittenSet) -> None:
    """E0601 if files that are none of ours have names of ours: `force` writes beside files, not over them."""
    clash = [name for name in foreign if name == NAME or written.writes(name)]
    if clash:
        raise TraceError(
            "E0601",
            f"`{clash[0]}` in `{out}` is there already, and not of a trace set of stagec",
            help="move it away, or name another directory: `--force` writes beside files, not over them",
        )
