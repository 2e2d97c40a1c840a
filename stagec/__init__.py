"""stagec: compile a model and a plan for spreading it into one Chakra execution trace per rank.

Read `driver.py` first: the whole compiler on one page.
"""

__version__ = "0.1.0"
