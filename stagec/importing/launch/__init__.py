"""Launch scripts and settings of training frameworks as plans."""

from stagec.importing.launch.launch import Launch, NotAPlan, plan_text
from stagec.importing.launch.read import import_plan

__all__ = ["Launch", "NotAPlan", "import_plan", "plan_text"]
