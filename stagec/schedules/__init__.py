"""Pipeline schedules as data: which rank does what, in which order.

    schedule = build("1f1b", p=4, v=1, m=8)
    print(text(schedule))                     # rank 0: F0 F1 F2 F3 B0 F4 B1 ...
    report = validate(schedule, Costs(forward=1, backward=2))
    report.makespan, report.bubble, report.in_flight.rank_peak

`build` takes a name of `names()`, a table (`mine.csv`) or a function (`mine.py:function`). What each
schedule is and demands, and the paper it is from, is in `catalogue`; what a user's may contain, in
`custom`; what `prove` and `validate` prove, in `validator`; how a transfer finds its place, in `transfers`.
"""

from stagec.schedules.build import build as build
from stagec.schedules.catalogue import (
    CATALOGUE as CATALOGUE,
    TRANSFERS as TRANSFERS,
    Entry as Entry,
    check_sizes as check_sizes,
    names as names,
    usual_transfers as usual_transfers,
)
from stagec.schedules.custom import (
    from_csv as from_csv,
    from_function as from_function,
    from_rows as from_rows,
)
from stagec.schedules.errors import (
    InvalidSchedule as InvalidSchedule,
    ScheduleError as ScheduleError,
)
from stagec.schedules.in_flight import InFlight as InFlight, in_flight as in_flight
from stagec.schedules.picture import picture as picture
from stagec.schedules.placement import (
    Placement as Placement,
    placement as placement,
    placement_of as placement_of,
)
from stagec.schedules.table import (
    Action as Action,
    ActionKind as ActionKind,
    Schedule as Schedule,
    text as text,
)
from stagec.schedules.timing import (
    ActionCosts as ActionCosts,
    Timing as Timing,
    simulate as simulate,
)
from stagec.schedules.validator import (
    ScheduleReport as ScheduleReport,
    prove as prove,
    validate as validate,
)
