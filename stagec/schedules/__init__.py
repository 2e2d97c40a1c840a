"""Pipeline schedules as data: which rank does what, in which order.

    schedule = build("1f1b", p=4, v=1, m=8)
    print(text(schedule))                     # rank 0: F0 F1 F2 F3 B0 F4 B1 ...
    report = validate(schedule, Costs(forward=1, backward=2))
    report.makespan, report.bubble, report.in_flight.rank_peak

`build` takes a name of `names()`, a table (`mine.csv`) or a function (`mine.py:function`). What each
schedule is and demands, and the paper it is from, is in `catalogue`; what a user's may contain, in
`custom`; what `validate` proves, in `validator`; how a transfer finds its place, in `transfers`.
"""

from stagec.schedules.build import build
from stagec.schedules.catalogue import CATALOGUE, Entry, check_sizes, names
from stagec.schedules.custom import from_csv, from_function, from_rows
from stagec.schedules.errors import InvalidSchedule, ScheduleError
from stagec.schedules.in_flight import InFlight
from stagec.schedules.picture import picture
from stagec.schedules.placement import Placement, placement, placement_of
from stagec.schedules.table import Action, ActionKind, Schedule, text
from stagec.schedules.timing import ActionCosts, Timing, simulate
from stagec.schedules.validator import ScheduleReport, validate

__all__ = [
    "CATALOGUE",
    "Action",
    "ActionCosts",
    "ActionKind",
    "Entry",
    "InFlight",
    "InvalidSchedule",
    "Placement",
    "Schedule",
    "ScheduleError",
    "ScheduleReport",
    "Timing",
    "build",
    "check_sizes",
    "from_csv",
    "from_function",
    "from_rows",
    "names",
    "picture",
    "placement",
    "placement_of",
    "simulate",
    "text",
    "validate",
]
