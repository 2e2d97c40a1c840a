"""Launch scripts and settings of training frameworks as plans."""

from stagec.importing.launch.read import import_plan
from stagec.importing.launch.training_run import Launch, NotAPlan, plan_text

__all__ = ["Launch", "NotAPlan", "import_plan", "plan_text"]
