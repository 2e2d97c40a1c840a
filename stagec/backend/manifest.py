"""`manifest.json`: what a trace set is made of, and a hash of every file.

The hashes are CRC-32, which tell a file that is complete from one that is cut short or damaged, and
cost nothing to compute (crc.py). The set as a whole has a SHA-256, `digest`, of everything that
decides its bytes. There is no time and no path in it: the same input gives the same manifest.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stagec.backend.files import Files

FORMAT = "stagec traces 1"
NAME = "manifest.json"
COMM_GROUP = "comm_group.json"


@dataclass(frozen=True, slots=True)
class FileEntry:
    num_bytes: int
    crc: int


def manifest_json(
    head: Mapping[str, Any], files: Mapping[str, FileEntry], beside: Mapping[str, FileEntry]
) -> bytes:
    """The text: the head indented, one line per file."""
    text = json.dumps({"format": FORMAT} | dict(head), indent=2, ensure_ascii=False)
    listed = {"beside": beside, "files": files} if beside else {"files": files}
    for key, entries in listed.items():
        lines = ",\n".join(
            f'    {json.dumps(name)}: {{"bytes": {entry.num_bytes}, "crc32": "{entry.crc:08x}"}}'
            for name, entry in entries.items()
        )
        text = f'{text[:-2]},\n  "{key}": {{\n{lines}\n  }}\n}}'
    return f"{text}\n".encode()


def own_files(text: bytes, files: Files) -> set[str]:
    """The files of the set that a manifest describes, itself included; none if it is not ours.

    What lies beside the traces for a simulator is, as long as nobody has changed it.
    """
    manifest = parse_manifest(text)
    if manifest is None:
        return set()
    entries = beside_traces(manifest).items()
    kept = {name for name, each in entries if files.matches(name, each.num_bytes, each.crc)}
    return {*manifest["files"], NAME, *kept}


def beside_traces(manifest: Mapping[str, Any]) -> dict[str, FileEntry]:
    """What was written beside the traces."""
    try:
        listed = manifest.get("beside", {}).items()
        return {name: FileEntry(int(e["bytes"]), int(e["crc32"], 16)) for name, e in listed}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def parse_manifest(text: bytes) -> dict[str, Any] | None:
    """A manifest of ours, or None."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return None
    return manifest if isinstance(manifest.get("files"), dict) else None
