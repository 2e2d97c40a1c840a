"""`manifest.json`: what a trace set is made of, and a hash of every file.

The hashes are CRC-32, which tell a file that is complete from one that is cut short or damaged, and
cost nothing to compute (crc.py). The set as a whole has a SHA-256, `digest`, of everything that
decides its bytes. There is no time and no path in it: the same input gives the same manifest.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = "stagec traces 1"
NAME = "manifest.json"
COMM_GROUP = "comm_group.json"


@dataclass(frozen=True, slots=True)
class FileEntry:
    num_bytes: int
    crc: int


def manifest_json(head: Mapping[str, Any], files: Mapping[str, FileEntry]) -> bytes:
    """The text: the head indented, one line per file."""
    text = json.dumps({"format": FORMAT} | dict(head), indent=2, ensure_ascii=False)
    lines = ",\n".join(
        f'    {json.dumps(name)}: {{"bytes": {entry.num_bytes}, "crc32": "{entry.crc:08x}"}}'
        for name, entry in files.items()
    )
    return f'{text[:-2]},\n  "files": {{\n{lines}\n  }}\n}}\n'.encode()


def own_files(text: bytes) -> set[str] | None:
    """The files of the set that a manifest describes, itself included; None if it is not ours."""
    manifest = parse_manifest(text)
    return None if manifest is None else {*manifest["files"], NAME}


def parse_manifest(text: bytes) -> dict[str, Any] | None:
    """A manifest of ours, or None."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return None
    return manifest if isinstance(manifest.get("files"), dict) else None
