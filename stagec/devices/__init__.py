"""Devices as files: what they can do by their datasheets, and how far measured operators are from that.

`named("h100")` is one that ships, `load("mine.toml")` one of the user's own. `model.py` says what a device is, `rules.py` how long an
operator takes by its sizes, `file.py` how files read.
"""

from stagec.devices.file import LIMITS, load, named, names
from stagec.devices.model import DeviceModel, TimeTable

__all__ = ["LIMITS", "DeviceModel", "TimeTable", "load", "named", "names"]
