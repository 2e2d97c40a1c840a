"""A pass with the name of one of ours."""

from xdsl.passes import ModulePass


class LowerToTasks(ModulePass):
    name = "lower-to-tasks"
