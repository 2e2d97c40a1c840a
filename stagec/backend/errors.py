"""What can go wrong when traces are written or read, as a diagnostic without a source span."""

from dataclasses import dataclass


@dataclass(eq=False)
class TraceError(Exception):
    """A diagnostic of the backend: codes E06xx, worded as STYLE section 8 says."""

    code: str
    message: str
    help: str
    note: str = ""

    def __post_init__(self) -> None:
        super().__init__(self.code, self.message, self.help, self.note)

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        if self.note:
            lines.append(f"  = note: {self.note}")
        if self.help:
            lines.append(f"  = help: {self.help}")
        return "\n".join(lines)
