"""What is raised about a schedule: one that cannot be built, and one that is wrong."""


class ScheduleError(ValueError):
    """A schedule that cannot be had: unknown, unreadable, or impossible for these sizes.

    `message` says what is wrong, `help` what to choose instead. `reason` is a short fixed word for
    programs (`too-few-microbatches`, `stages-per-rank`, `uneven-rounds`, `odd`, `stuck`, ...).
    """

    def __init__(self, message: str, help: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.reason = reason
        self.row: int | None = None
        """The rank whose row of a table is wrong, where it is one."""

    def __str__(self) -> str:
        return f"{self.message}\nhelp: {self.help}" if self.help else self.message


DEADLOCKS = EAGER, RENDEZVOUS = "deadlock-eager", "deadlock-rendezvous"
"""The reasons for which transfers wait for each other for ever: those of eager sends, and of rendezvous sends alone."""

ONCE = "each stage runs each microbatch once: F, and B or both of I and W; what another rank reads is sent once"
WHAT_HOLDS = {
    "away": "a microbatch's F, B, I and W at a stage, and its transfers there, are on one rank",
    "group": "together go transfers, or a forward and the backward of another stage or microbatch",
    "incomplete": ONCE,
    "order": "an action stands behind those whose results it reads",
    "repeated": ONCE,
    "stages-per-rank": "give each rank as many stages as `virtual_stages` says",
    "unknown": "stages and microbatches count from 0",
}
"""What holds of every schedule, by the reason for which one is refuted."""


class InvalidSchedule(ScheduleError):
    """A schedule that the validator refutes.

    `rank` and `action` are the first place where it shows. For a deadlock, `cycle` lists who waits
    for whom, one line per rank, the last waiting for the first.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        rank: int,
        action: str,
        cycle: tuple[str, ...] = (),
        help: str = "",
    ) -> None:
        super().__init__(message, help or WHAT_HOLDS.get(reason, ""), reason)
        self.rank = self.row = rank
        self.action = action
        self.cycle = cycle

    def __str__(self) -> str:
        lines = [self.message, *(f"note: {line}" for line in self.cycle)]
        return "\n".join([*lines, f"help: {self.help}"] if self.help else lines)
