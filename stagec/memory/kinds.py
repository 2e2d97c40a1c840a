"""What memory is used for."""

from enum import IntEnum


class Kind(IntEnum):
    """In the order in which tables and charts show them."""

    PARAMETERS = 0
    MASTER = 1
    OPTIMIZER = 2
    GRADIENTS = 3
    SAVED = 4
    RECOMPUTED = 5
    DEFERRED = 6
    GATHERED = 7
    FETCHED = 8
    COMMUNICATION = 9
    INPUTS = 10
    TEMPORARIES = 11
    HOST = 12
    """In the memory of the host: no part of a device's."""


TITLES = {
    Kind.PARAMETERS: "parameters",
    Kind.MASTER: "master weights",
    Kind.OPTIMIZER: "optimizer state",
    Kind.GRADIENTS: "gradients",
    Kind.SAVED: "saved activations",
    Kind.RECOMPUTED: "recomputed values",
    Kind.DEFERRED: "kept for weight gradients",
    Kind.GATHERED: "gathered parameters",
    Kind.FETCHED: "fetched from the host",
    Kind.COMMUNICATION: "communication buffers",
    Kind.INPUTS: "inputs",
    Kind.TEMPORARIES: "temporaries",
    Kind.HOST: "stored on the host",
}
