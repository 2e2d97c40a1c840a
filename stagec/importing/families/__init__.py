"""What each `model_type` of transformers is, in parts: one module for each group of families."""

from stagec.importing.families.common import Family
from stagec.importing.families.dense import DENSE

FAMILIES: dict[str, Family] = {**DENSE}
