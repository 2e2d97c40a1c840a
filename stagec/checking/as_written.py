"""Whether the files of a set are as stagec wrote them: `manifest.json` beside them has a CRC-32 of each.

Most changes of a file break no rule: another number of FLOPs is a number of FLOPs. Only who wrote it can tell.
"""

from __future__ import annotations

import json
import os
import zlib

from stagec.checking.findings import Findings, Place
from stagec.reading import read_file

_MANIFEST = "manifest.json"
_FORMAT = "stagec traces "
_MAX_MANIFEST_BYTES = 1 << 30
_MESSAGE = "a file is not as stagec wrote it"


def written_files(directory: str) -> dict[str, str]:
    """The CRC-32 of each file that stagec wrote into a directory, in hexadecimal; nothing of a set of other tools."""
    try:
        manifest = json.loads(read_file(os.path.join(directory, _MANIFEST), _MAX_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(manifest, dict) or not str(manifest.get("format")).startswith(_FORMAT):
        return {}
    files = manifest.get("files")
    if not isinstance(files, dict):
        return {}
    return {
        name: str(entry["crc32"])
        for name, entry in files.items()
        if isinstance(entry, dict) and "crc32" in entry and os.path.basename(name) == name
    }


def check_written(
    directory: str, written: dict[str, str], crcs: dict[str, int], findings: Findings
) -> None:
    """W0692 for each file that has changed since stagec wrote it, or is gone. `crcs`: of files that were read."""
    for name, crc in written.items():
        path = os.path.join(directory, name)
        if name in crcs:
            found = crcs[name]
        elif not os.path.lexists(path):
            findings.add("W0692", _MESSAGE, Place(file=name, detail="it is missing"))
            continue
        else:
            try:
                found = zlib.crc32(read_file(path))
            except OSError:
                continue  # What cannot be read is found elsewhere.
        if f"{found:08x}" != crc:
            detail = f"its CRC-32 is {found:08x}, and {crc} in `{_MANIFEST}`"
            findings.add("W0692", _MESSAGE, Place(file=name, detail=detail))


def crc_of_file(path: str) -> int:
    """The CRC-32 of a file as it is stored."""
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc
