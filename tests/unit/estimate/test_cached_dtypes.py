"""Attention takes what the dtype of its cache says: by a table of such caches, or as many bytes as are read."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from stagec.calibrate.folder import read_folder
from stagec.devices import named
from stagec.devices.model import DeviceModel
from stagec.devices.rules import KINDS
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.work import Work
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.kernels.price import Basis, Price
from tests.unit.estimate.test_served_attention import SIZES, attention_us
from tests.unit.seldom import some
from tests.unit.test_serving import LATENT, Group, text

WITH_TABLES = ("h100", "h200", "h800", "b200", "b300", "gb200", "gb300")
FP8 = "fp8 cache"


def priced(device: DeviceModel, kind: Work, sizes: dict[str, int], keys: str) -> Price:
    kernel = Kernel(kind, "bf16", tuple(sizes.items()), stored=keys)
    return KernelPrices(device).price(Compute(1, 1, kernel=kernel))


def decoded(rng: random.Random) -> dict[str, int]:
    kv_heads = rng.choice([1, 2, 4, 8])
    sizes = {"batch": rng.randint(1, 256), "seq": 1, "keys": rng.randint(16, 16384)}
    sizes |= {"heads": kv_heads * rng.choice([1, 4, 8]), "kv_heads": kv_heads}
    return sizes | {"head_dim": 128, "value_dim": 128}


@pytest.mark.parametrize("seed", range(20))
def test_a_table_of_such_caches_is_what_counts(seed: int) -> None:
    rng = random.Random(seed)
    device, sizes = named(rng.choice(WITH_TABLES)), decoded(rng)
    kind, table = KINDS["decode_attention"], device.tables["decode_attention", "bf16", "128", FP8]
    measured = {**sizes, "context": sizes["keys"], "window": 0, "cache_bytes": 1}
    wanted = kind.rule(device, "bf16", measured) * table.factor(kind.axes(measured))
    found = priced(device, Work.ATTENTION, sizes, "fp8")
    assert found.us == pytest.approx(wanted, rel=1e-6)
    assert found.basis == (Basis.MEASURED if table.covers(kind.axes(measured)) else Basis.RULE)


@pytest.mark.parametrize("seed", range(20))
def test_without_one_a_bf16_caches_time_follows_the_bytes(seed: int) -> None:
    rng = random.Random(seed)
    shipped = named(rng.choice((*WITH_TABLES, "a100")))
    own = {key: table for key, table in shipped.tables.items() if FP8 not in key}
    device, sizes = replace(shipped, tables=own), decoded(rng)
    wide = priced(device, Work.ATTENTION, sizes, "bf16")
    for cache, element in (("fp8", 1), ("mxfp8", 33 / 32), ("fp32", 4)):
        found = priced(device, Work.ATTENTION, sizes, cache)
        assert found.basis is Basis.RULE
        per = 2 * 128 * sizes["batch"] / float(device.numbers["memory_bytes_per_s"])
        pairs = sizes["batch"] * sizes["heads"] * sizes["keys"]
        computed = 4 * 128 * pairs / (device.peak("bf16") or 1)
        times = [
            1e6
            * max(computed, per * (each * sizes["kv_heads"] * sizes["keys"] + 2 * sizes["heads"]))
            + device.launch_us
            for each in (element, 2)
        ]
        assert found.us == pytest.approx(wide.us * times[0] / times[1], rel=1e-6)


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_a_plans_cache_decides_its_time(seed: int) -> None:
    """Of long contexts an iteration takes about as much less as its cache has fewer bytes; a prompt's attention is never as of another dtype."""
    rng = random.Random(seed)
    model = text()
    for name, size in SIZES.items():
        model = model.replace(f"dim {name} = ", f"dim {name} = {size} # ")
    tokens = [Group(rng.randint(64, 256), 1, rng.randint(4000, 9000))]
    prompt = [Group(rng.randint(1, 4), rng.choice([1024, 2048, 4096]), 0)]
    device = rng.choice(("h100", "h200", "b200"))
    wide, narrow = (attention_us(model, tokens, each, device) for each in ("bf16", "fp8"))
    assert 0.45 < narrow / wide < 0.7
    wide, narrow = (attention_us(model, prompt, each, device) for each in ("bf16", "fp8"))
    assert narrow != wide and 0.6 < narrow / wide < 1.4


def test_a_latent_cache_is_read_in_its_dtype() -> None:
    model = LATENT.replace("x = x + Attention(x)", "x = x + Absorbed(x)")
    for name, size in {"D": 7168, "H": 128, "N": 128, "R": 64, "G": 128, "C": 512}.items():
        model = model.replace(f"dim {name} = ", f"dim {name} = {size} # ")
    for device in ("h100", "b200"):
        wide, narrow = (
            attention_us(model, [Group(64, 1, 8000)], each, device) for each in ("bf16", "fp8")
        )
        assert 0.4 < narrow / wide < 0.95


def test_measurements_say_what_a_cache_holds(tmp_path: Path) -> None:
    head, row = "dtype,cache,batch,context,heads,kv_heads,head_dim,window,ms", "1,512,8,8,128,0,.01"
    (tmp_path / "attention_generation.csv").write_text(
        f"{head}\nbf16,,{row}\nbf16,fp8,{row}\nfp8,,{row}\n"
    )
    (tmp_path / "mla_generation.csv").write_text(
        "cache,batch,context,heads,ms\n,1,512,16,.01\nfp8,1,512,16,.01\n"
    )
    found = {
        key: float(rows.sizes["cache_bytes"][0])
        for key, rows in read_folder(tmp_path, Counter()).items()
    }
    assert found == {
        ("decode_attention", "bf16", "128"): 2,
        ("decode_attention", "bf16", "128", FP8): 1,
        ("decode_attention", "fp8", "128"): 1,
        ("decode_latent_attention", "bf16"): 2,
        ("decode_latent_attention", "bf16", FP8): 1,
    }
