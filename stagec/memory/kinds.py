"""What memory is used for."""

from enum import IntEnum


class Kind(IntEnum):
    """In the order in which tables and charts show them."""

    PARAMETERS = 0
    MASTER = 1
    OPTIMIZER = 2
    GRADIENTS = 3
    CACHE = 4
    SAVED = 5
    RECOMPUTED = 6
    DEFERRED = 7
    GATHERED = 8
    FETCHED = 9
    COMMUNICATION = 10
    INPUTS = 11
    TEMPORARIES = 12
    HOST = 13
    """In the memory of the host: no part of a device's."""


TITLES = {
    Kind.PARAMETERS: "parameters",
    Kind.MASTER: "master weights",
    Kind.OPTIMIZER: "optimizer state",
    Kind.GRADIENTS: "gradients",
    Kind.CACHE: "cache",
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
