"""Files that a user names, read whole: regular ones of a sane size, and never for ever."""

import csv
import errno
import json
import os
import stat

MOST_BYTES = 64 << 20
"""The most bytes of a text: a model, a schedule, a load of experts, IR."""


def read_file(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """The bytes of a file. `OSError`, its `strerror` saying why, of what is no regular file or has more bytes than `most`.

    A pipe without a writer is not waited for, nor a file of the kernel's that has nothing to say; what has no end is not
    read to it.
    """
    try:
        handle = at_once(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "it is not there") from None
    except ValueError as error:
        raise OSError(0, str(error)) from None
    status = os.fstat(handle)
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(0, f"it is {'a directory' if stat.S_ISDIR(mode) else 'no regular file'}")
    if status.st_size > most:
        os.close(handle)
        raise too_long(most)
    with open(handle, "rb", buffering=0) as file:
        parts: list[bytes] = []
        left = most + 1
        while left and (part := file.read(min(left, 1 << 20))) != b"":
            if part is None:
                raise OSError(0, "it has nothing to be read now")
            parts.append(part)
            left -= len(part)
    if not left:
        raise too_long(most)
    return b"".join(parts)


def without_detours(path: str) -> str:
    """The path without `folder/..`, where that leads to the same file: behind a link to a folder it does not."""
    short = os.path.normpath(path)
    return short if os.path.realpath(short) == os.path.realpath(path) else path


def at_once(path: str | os.PathLike[str], flags: int) -> int:
    """An opener for `open` that waits for nobody at the other end, nor do reads of what has nothing to say: they are None."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_whole_text(path: str | os.PathLike[str], most: int = MOST_BYTES) -> str:
    """The text of a file. `OSError` as from `read_file`, with a `strerror` too for what is no UTF-8."""
    try:
        return read_file(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise OSError(0, f"it is not text: byte {error.start} is not UTF-8") from None


def parse_csv(text: str) -> list[tuple[int, list[str]]]:
    """The rows of a CSV text, each with the number of its last line. `ValueError` for one that is none: a field as long as no cell is."""
    reader = csv.reader(text.splitlines())
    try:
        return [(reader.line_num, words) for words in reader]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None


def parse_json(text: str | bytes) -> object:
    """What a JSON text says. `ValueError`, if it nests too deeply too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # of Python's limit on the digits of a whole number
        raise ValueError("a number has thousands of digits") from None


def too_long(most: int) -> OSError:
    size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
    return OSError(0, f"it has more than {size}")
