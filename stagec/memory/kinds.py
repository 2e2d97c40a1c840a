"""What memory is used for, in words."""

from __future__ import annotations

from stagec.dialects.memory import Kind

TITLES = {
    Kind.PARAMETERS: "parameters",
    Kind.TRANSPOSED: "transposed weights",
    Kind.MASTER: "master weights",
    Kind.OPTIMIZER: "optimizer state",
    Kind.GRADIENTS: "gradients",
    Kind.CACHE: "cache",
    Kind.PROCESS: "kept by the process",
    Kind.SAVED: "saved activations",
    Kind.RECOMPUTED: "recomputed values",
    Kind.DEFERRED: "kept for weight gradients",
    Kind.GATHERED: "gathered parameters",
    Kind.FETCHED: "fetched from the host",
    Kind.COMMUNICATION: "communication buffers",
    Kind.INPUTS: "inputs",
    Kind.TEMPORARIES: "temporaries",
    Kind.HOST: "stored on the host",
    Kind.NVME: "written to NVMe",
}
