"""The broken files and directories: what is done to a written set, and the code that names it."""

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.corpus.traces import delimited, varint


@dataclass(frozen=True)
class FileFault:
    name: str
    code: str
    base: str
    mutate: Callable[[Path], None]
    file: str = ""
    also: tuple[str, ...] = ()
    """Codes of what else is then wrong."""


def _cut(path: Path) -> None:
    file = path / "model.1.et"
    file.write_bytes(file.read_bytes()[:-5])


def _cut_length(path: Path) -> None:
    file = path / "model.1.et"
    file.write_bytes(file.read_bytes() + b"\xff\xff")


def _flip(path: Path) -> None:
    """Make the third message's first tag one that does not exist."""
    file = path / "model.1.et"
    data = bytearray(file.read_bytes())
    at = 0
    for _ in range(2):
        at += 1 + data[at]
    data[at + 1] = 0x07
    file.write_bytes(data)


def _text(path: Path) -> None:
    (path / "model.1.et").write_text("this is not a trace at all\n" * 40)


def _empty(path: Path) -> None:
    (path / "model.1.et").write_bytes(b"")


def _missing(path: Path) -> None:
    (path / "model.1.et").unlink()


def _directory(path: Path) -> None:
    _missing(path)
    (path / "model.1.et").mkdir()


def _pipe(path: Path) -> None:
    _missing(path)
    os.mkfifo(path / "model.1.et")


def _loop(path: Path) -> None:
    _missing(path)
    (path / "model.1.et").symlink_to(path / "model.1.et")


def _zip(path: Path) -> None:
    for file in list(path.glob("*.et")):
        (path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


def _cut_zip(path: Path) -> None:
    file = path / "model.1.et"
    file.write_bytes(gzip.compress(file.read_bytes())[:-9])


def _read_only(path: Path) -> None:
    (path / "model.2.et").chmod(0o444)


def _alone(path: Path) -> None:
    for file in path.glob("model.[1-9].et"):
        file.unlink()


def _zeros(path: Path) -> None:
    (path / "model.1.et").rename(path / "model.01.et")


def _two_files(path: Path) -> None:
    data = (path / "model.1.et").read_bytes()
    (path / "model.1.et.gz").write_bytes(gzip.compress(data))


def _stray(path: Path) -> None:
    (path / "notes.et").write_bytes(b"")


def _two_sets(path: Path) -> None:
    for file in list(path.glob("model.*.et")):
        (path / file.name.replace("model", "other")).write_bytes(file.read_bytes())


def _no_set(path: Path) -> None:
    for file in path.glob("*.et"):
        file.unlink()


def _many_fields(path: Path) -> None:
    """A node with more attributes than anyone needs."""
    body = varint(1 << 3) + varint(9000) + delimited(10, b"") * 20000
    file = path / "model.1.et"
    file.write_bytes(file.read_bytes() + varint(len(body)) + body)


def _large_message(path: Path) -> None:
    body = varint(1 << 3) + varint(9000) + delimited(2, b"x" * (5 << 20))
    file = path / "model.1.et"
    file.write_bytes(file.read_bytes() + varint(len(body)) + body)


def _bomb(path: Path) -> None:
    """70 MiB of zeros in 70 kB."""
    (path / "model.1.et").write_bytes(gzip.compress(bytes(70 << 20)))


def _append(data: bytes):
    def mutate(path: Path) -> None:
        with open(path / "model.1.et", "ab") as file:
            file.write(data)

    return mutate


def _append_zip(path: Path) -> None:
    file = path / "model.1.et"
    file.write_bytes(gzip.compress(file.read_bytes()) + b"and more")


def _device(path: Path) -> None:
    _missing(path)
    (path / "model.1.et").symlink_to("/dev/zero")


def _group_pipe(path: Path) -> None:
    (path / "comm_group.json").unlink()
    os.mkfifo(path / "comm_group.json")


def _groups(text: str):
    return lambda path: (path / "comm_group.json").write_text(text, errors="surrogateescape")


def _group_key(path: Path) -> None:
    file = path / "comm_group.json"
    groups = json.loads(file.read_text())
    file.write_text(json.dumps(groups | {"0": [0, 1]}))


FILE_FAULTS = [
    FileFault("cut_in_a_message", "E0692", "data_parallel", _cut, "model.1.et"),
    FileFault("cut_in_a_length", "E0692", "data_parallel", _cut_length, "model.1.et"),
    FileFault("bad_tag", "E0693", "data_parallel", _flip, "model.1.et"),
    FileFault("text_file", "E0692", "data_parallel", _text, "model.1.et", ("E0693", "E0694")),
    FileFault("empty_file", "E0695", "data_parallel", _empty, "model.1.et"),
    FileFault("missing_rank", "E0696", "data_parallel", _missing),
    FileFault("directory", "E0691", "data_parallel", _directory, "model.1.et"),
    FileFault("pipe", "E0691", "data_parallel", _pipe, "model.1.et"),
    FileFault("link_to_itself", "E0691", "data_parallel", _loop, "model.1.et"),
    FileFault("compressed", "E0680", "mesh", _zip, "model.0.et.gz"),
    FileFault("cut_compressed", "E0699", "data_parallel", _cut_zip, "model.1.et"),
    FileFault("read_only", "E0681", "data_parallel", _read_only, "model.2.et"),
    FileFault("one_rank", "E0682", "data_parallel", _alone, "model.0.et"),
    FileFault("leading_zeros", "E0697", "data_parallel", _zeros, "model.01.et"),
    FileFault("rank_twice", "E0697", "data_parallel", _two_files, "model.1.et.gz"),
    FileFault("stray_file", "W0690", "data_parallel", _stray, "notes.et"),
    FileFault("two_sets", "W0690", "data_parallel", _two_sets),
    FileFault("no_set", "E0690", "data_parallel", _no_set),
    FileFault("too_many_fields", "E0698", "data_parallel", _many_fields, "model.1.et"),
    FileFault("message_too_long", "E0698", "data_parallel", _large_message, "model.1.et"),
    FileFault("gzip_bomb", "E0698", "data_parallel", _bomb, "model.1.et"),
    FileFault("gzip_garbage", "E0699", "data_parallel", _append_zip, "model.1.et"),
    FileFault("absurd_length", "E0692", "data_parallel", _append(varint(1 << 62)), "model.1.et"),
    FileFault("varint_without_end", "E0692", "data_parallel", _append(b"\xff" * 40), "model.1.et"),
    FileFault("link_to_a_device", "E0691", "data_parallel", _device, "model.1.et"),
    FileFault("groups_pipe", "E0640", "mesh", _group_pipe, "comm_group.json"),
    FileFault("groups_binary", "E0640", "mesh", _groups("\udcff\x00"), "comm_group.json"),
    FileFault(
        "group_of_nan", "E0640", "mesh", _groups('{"1": [NaN]}'), "comm_group.json", ("E0642",)
    ),
    FileFault("groups_no_json", "E0640", "mesh", _groups("{"), "comm_group.json"),
    FileFault("groups_no_object", "E0640", "mesh", _groups("[1]"), "comm_group.json"),
    FileFault("groups_nested", "E0640", "mesh", _groups("[" * 100000), "comm_group.json"),
    FileFault(
        "group_no_list", "E0640", "mesh", _groups('{"1": "0 1"}'), "comm_group.json", ("E0642",)
    ),
    FileFault(
        "group_of_text", "E0640", "mesh", _groups('{"1": ["0"]}'), "comm_group.json", ("E0642",)
    ),
    FileFault("group_zero", "E0641", "mesh", _group_key, "comm_group.json", ("W0640",)),
]
