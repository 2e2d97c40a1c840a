"""Files below an fsspec URL: `s3://bucket/traces`, `memory://traces`. fsspec is an extra."""

import importlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stagec.backend.errors import TraceError
from stagec.backend.files import Data

StorageOptions = tuple[tuple[str, Any], ...]
"""Keyword arguments of the file system, as pairs."""


@dataclass(frozen=True)
class RemoteFiles:
    """Objects below a URL. Each appears whole, as such stores have it; links there are none."""

    url: str
    options: StorageOptions = ()

    def write(self, name: str, data: Data) -> None:
        system, root = self.open()
        with remote_errors(f"{self.url}/{name}"):
            system.pipe_file(f"{root}/{name}", bytes(data))

    def link(self, existing: str, name: str) -> bool:
        return False

    def matches(self, name: str, size: int, crc: int) -> bool:
        data = self.read(name)
        return data is not None and len(data) == size and zlib.crc32(data) == crc

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None where there is no such file."""
        system, root = self.open()
        with remote_errors(f"{self.url}/{name}"):
            try:
                return system.cat_file(f"{root}/{name}")
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        """What there is, directly below the URL."""
        system, root = self.open()
        with remote_errors(self.url):
            system.invalidate_cache()
            try:
                found = system.ls(root, detail=False)
            except FileNotFoundError:
                return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def remove(self, names: list[str]) -> None:
        system, root = self.open()
        with remote_errors(self.url):
            system.invalidate_cache()
            there = set(self.names())
            for name in names:
                if name in there:
                    system.rm_file(f"{root}/{name}")

    def make_directory(self) -> None:
        """Object stores have none; other file systems do."""
        system, root = self.open()
        with remote_errors(self.url):
            system.makedirs(root, exist_ok=True)

    def open(self) -> tuple[Any, str]:
        """The file system and the path in it."""
        try:
            fsspec = importlib.import_module("fsspec.core")
        except ImportError:
            raise TraceError(
                "E0609",
                f"`{self.url}` needs the package fsspec",
                help="`pip install '.[remote]'` in stagec's clone",
            ) from None
        try:
            return fsspec.url_to_fs(self.url, **dict(self.options))
        except (ImportError, ValueError) as error:
            raise TraceError(
                "E0609",
                f"cannot write to `{self.url}`",
                note=str(error),
                help="install the package that fsspec names for this kind of URL",
            ) from None


@contextmanager
def remote_errors(place: str) -> Iterator[None]:
    """Every store raises errors of its own; to the user they are one."""
    try:
        yield
    except TraceError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        help_ = "look whether the place is there, and whether you may write to it"
        raise TraceError("E0603", f"cannot reach `{place}`", help=help_, note=reason) from error
