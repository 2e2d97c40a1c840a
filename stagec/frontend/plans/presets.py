"""Devices that a plan may name, in published numbers.

- `flops_per_s`: dense bf16 on the tensor cores, without sparsity.
- `capacity`: what datasheets call 80, 141 and 180 GB are stacks of GiB.
- `link_bytes_per_s`: NVLink in one direction, half of what datasheets add up.
- `network_bytes_per_s`: one ConnectX port per GPU of a DGX, 200 or 400 Gbit/s in one direction.
- `host_bytes_per_s`: PCIe x16 in one direction, generation 4 or 5.
- Latencies: a step of a ring in NCCL's own cost model, with its protocol for large messages (src/graph/tuning.cc,
  `hwLat`, ring, Simple: 3.4 µs by NVLink, 9.6 µs by network).

Sources: NVIDIA A100 Tensor Core GPU datasheet (80 GB SXM) and DGX A100 datasheet; NVIDIA H100 Tensor Core GPU datasheet (SXM)
and DGX H100 datasheet; NVIDIA H200 Tensor Core GPU datasheet (SXM) and DGX H200 datasheet; NVIDIA DGX B200 datasheet, divided by
its eight GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

Numbers = Mapping[str, float | int]

GIB = 1 << 30
NVLINK_LATENCY_US = 3.4
NETWORK_LATENCY_US = 9.6


def sxm(
    flops_per_s: float,
    capacity: int,
    memory_bytes_per_s: float,
    link_bytes_per_s: float,
    network_bytes_per_s: float,
    host_bytes_per_s: float,
) -> Numbers:
    """A GPU in a node of eight, as in a DGX."""
    return {
        "flops_per_s": flops_per_s,
        "capacity": capacity,
        "memory_bytes_per_s": memory_bytes_per_s,
        "link_bytes_per_s": link_bytes_per_s,
        "link_latency_us": NVLINK_LATENCY_US,
        "network_bytes_per_s": network_bytes_per_s,
        "network_latency_us": NETWORK_LATENCY_US,
        "host_bytes_per_s": host_bytes_per_s,
        "node": 8,
    }


PRESETS: Mapping[str, Numbers] = {
    "a100": sxm(312e12, 80 * GIB, 2.039e12, 300e9, 25e9, 32e9),
    "h100": sxm(989.4e12, 80 * GIB, 3.35e12, 450e9, 50e9, 64e9),
    "h200": sxm(989.4e12, 141 * GIB, 4.8e12, 450e9, 50e9, 64e9),
    "b200": sxm(2250e12, 180 * GIB, 8e12, 900e9, 50e9, 64e9),
}
