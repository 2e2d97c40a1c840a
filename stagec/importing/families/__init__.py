"""What each `model_type` of transformers is, in parts: one module for each group of families."""

from stagec.importing.families.classic import CLASSIC
from stagec.importing.families.common import Family
from stagec.importing.families.deepseek import DEEPSEEK
from stagec.importing.families.deepseek_v4 import DEEPSEEK_V4
from stagec.importing.families.dense import DENSE
from stagec.importing.families.encoders import ENCODERS
from stagec.importing.families.experts import EXPERTS
from stagec.importing.families.gemma4 import GEMMA4
from stagec.importing.families.hybrid import HYBRID
from stagec.importing.families.masked import MASKED
from stagec.importing.families.mixed import MIXED
from stagec.importing.families.mllama import MLLAMA
from stagec.importing.families.multimodal import MULTIMODAL
from stagec.importing.families.multimodal_experts import MULTIMODAL_EXPERTS
from stagec.importing.families.seeing import SEEING
from stagec.importing.families.t5 import T5

FAMILIES: dict[str, Family] = {
    **DENSE,
    **CLASSIC,
    **EXPERTS,
    **DEEPSEEK,
    **DEEPSEEK_V4,
    **MULTIMODAL,
    **MLLAMA,
    **HYBRID,
    **MIXED,
    **ENCODERS,
    **MASKED,
    **T5,
    **GEMMA4,
    **MULTIMODAL_EXPERTS,
    **SEEING,
}
