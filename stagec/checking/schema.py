"""What the checker relies on of the Chakra schema: numbers and names.

They are those of schema/protobuf/et_def.proto in mlcommons/chakra (v0.0.4).
"""

import numpy as np

from stagec.checking.wire import FIXED32, FIXED64, LENGTH, VARINT

NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)
INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = range(8)

COLLECTIVES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)

ATTRIBUTES = (
    "num_ops",
    "tensor_size",
    "comm_type",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "is_cpu_op",
    "pg_name",
    "inputs",
    "outputs",
)
"""The attributes that are read. All others are ignored, as consumers ignore them."""

VALUE_KINDS = {
    3: "double",
    5: "float",
    7: "int32",
    9: "int64",
    11: "uint32",
    13: "uint64",
    15: "sint32",
    17: "sint64",
    19: "fixed32",
    21: "fixed64",
    23: "sfixed32",
    25: "sfixed64",
    27: "bool",
    29: "string",
    31: "bytes",
}
VALUE_KINDS |= {number + 1: f"{kind} list" for number, kind in VALUE_KINDS.items()}
"""The members of `AttributeProto.value`, by field number."""

STRING, STRING_LIST = 29, 30
ABSENT, NO_VALUE = 0, 1
"""In place of a field number: there is no such attribute, or it has no value."""
SFIXED32 = 23
IS_INTEGER = np.isin(np.arange(33), (7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27))
IS_SIGNED = np.isin(np.arange(33), (7, 9, 15, 17, 23, 25))
IS_ZIGZAG = np.isin(np.arange(33), (15, 17))
WIRE_TYPE = {number: LENGTH for number in VALUE_KINDS} | {
    3: FIXED64,
    5: FIXED32,
    19: FIXED32,
    21: FIXED64,
    23: FIXED32,
    25: FIXED64,
    **dict.fromkeys((7, 9, 11, 13, 15, 17, 27), VARINT),
}
