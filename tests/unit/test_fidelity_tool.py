"""The comparison itself: it reads both sides rightly, and it can say no."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stagec.backend.et_def_pb2 import AttributeProto, CollectiveCommType, Node, NodeType
from tests.fidelity.compare import Finding, compare_rank, differences
from tests.fidelity.left_out import ENTRIES, applying, table_rows
from tests.fidelity.oracle import Case, axes_of, read_case
from tests.fidelity.record import Communication, Compute, Memory, RankRecord
from tests.fidelity.report import ranks_text
from tests.fidelity.stg_text import stg_text
from tests.fidelity.trace import Traces, collective_bytes, parts
from tests.unit.test_backend_et_file import write_trace

GROUP = [0, 1]
FUSED = "aten._scaled_dot_product_flash_attention_for_cpu"
NORM = ["optim", "all_reduce", "float32", 32, 32, "tp", GROUP]


def case_file(folder: Path, **changes: Any) -> Path:
    """A small case under sequence parallelism, as a measured one would be written."""
    model: dict[str, Any] = {
        "arch": "llama",
        "vocab": 16,
        "dim": 8,
        "ffn": 12,
        "heads": 2,
        "kv_heads": 2,
        "layers": 1,
        "seq": 4,
        "batch": 2,
        "attn": "sdpa",
        "norm": "module",
        "causal": True,
        "dtype": "float32",
        "fused_qkv": False,
        "tie": False,
    }
    matmuls = [
        {"phase": "fwd", "op": "aten.mm", "shapes": [], "count": 2, "flops": 200},
        {"phase": "fwd", "op": FUSED, "shapes": [[2, 1, 4, 4]] * 3, "count": 1, "flops": 7},
        {"phase": "bwd", "op": "aten.bmm", "shapes": [], "count": 1, "flops": 400},
    ]
    flops = {
        "fwd": {"aten.mm": 200, FUSED: 7},
        "bwd": {"aten.bmm": 400},
    }
    rank = {
        "flops": flops,
        "matmuls": matmuls,
        "collectives": [
            ["fwd", "all_gather", "float32", 128, 256, "tp", GROUP],
            ["fwd", "reduce_scatter", "float32", 256, 128, "tp", GROUP],
            ["bwd", "reduce_scatter", "float32", 256, 128, "tp", GROUP],
            *[
                ["bwd", "all_gather", "float32", 128, 256, "tp", GROUP],
                ["bwd", "reduce_scatter", "float32", 256, 128, "tp", GROUP],
            ]
            * 2,
            ["bwd", "all_gather", "float32", 128, 256, "tp", GROUP],
            *[NORM] * 9,
        ],
        "memory": {
            "param_bytes": 1000,
            "grad_bytes": 1000 + (16 - 8) * 8 * 4,
            "optim_state_bytes_total": 2000 + 4 * 12,
        },
    }
    data: dict[str, Any] = {
        "name": "small",
        "model": model,
        "parallel": {"tp": 2, "tp_mode": "sp"},
        "opts": {},
        "world_size": 2,
        "ranks": {str(i): {"coord": {"tp": i}, **rank} for i in range(2)},
    }
    data["model"] |= changes.pop("model", {})
    data |= changes
    path = folder / "small.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return read_case(case_file(tmp_path))


def attribute(name: str, value: int | str) -> AttributeProto:
    if isinstance(value, str):
        return AttributeProto(name=name, string_val=value)
    return AttributeProto(name=name, int64_val=value)


def node(number: int, name: str, kind: NodeType, **values: int | str) -> Node:
    attributes = [attribute(key, value) for key, value in values.items()]
    return Node(id=number, name=name, type=kind, attr=attributes)


def collective(number: int, name: str, kind: CollectiveCommType, size: int) -> Node:
    return node(number, name, NodeType.COMM_COLL_NODE, comm_type=kind, comm_size=size, pg_name="7")


def written(folder: Path, nodes: Iterable[Node]) -> RankRecord:
    """Nodes to a file and back."""
    write_trace(folder / "Llama.0.et", nodes)
    (folder / "comm_group.json").write_text('{"7": [0, 1]}')
    return Traces(folder, "Llama", {"tp": 2}).rank(0, Memory(1000, 1000, 2000))


def faithful_nodes() -> list[Node]:
    """What a trace of the small case should have, in the order of the file."""
    return [
        node(0, "fwd/Llama/embedding", NodeType.COMP_NODE, num_ops=1),
        collective(1, "fwd/Block/all_gather[fp32]/L0", CollectiveCommType.ALL_GATHER, 128),
        node(2, "fwd/Block.SwiGLU.w1/contract/L0", NodeType.COMP_NODE, num_ops=100),
        node(3, "fwd/Block.SwiGLU.w3/contract/L0", NodeType.COMP_NODE, num_ops=100),
        node(4, "fwd/Block.Attention/attention/L0/m1", NodeType.COMP_NODE, num_ops=7),
        collective(5, "fwd/Block/reduce_scatter[fp32]/L0", CollectiveCommType.REDUCE_SCATTER, 256),
        node(7, "wgrad/Block/contract/L0", NodeType.COMP_NODE, num_ops=400),
        scatter(8, "Llama"),
        norm(9, "norm"),
        gather(6, "Block/L0"),
        scatter(10, "Block/L0"),
        gather(11, "Block/L0"),
        scatter(12, "Block/L0"),
        norm(13, "Block.norm2/L0"),
        norm(14, "Block.norm1/L0"),
        gather(15, "Llama"),
    ]


def gather(number: int, scope: str) -> Node:
    return passed(number, "bwd", scope, "all_gather", 128)


def scatter(number: int, scope: str) -> Node:
    return passed(number, "bwd", scope, "reduce_scatter", 256)


def norm(number: int, scope: str) -> Node:
    return passed(number, "grad_reduce", scope, "all_reduce", 32)


def passed(number: int, phase: str, scope: str, kind: str, size: int) -> Node:
    """A collective of the backward pass."""
    name, _, layer = scope.partition("/")
    instance = f"/{layer}" if layer else ""
    named = f"{phase}/{name}/{kind}[fp32]{instance}"
    return collective(number, named, getattr(CollectiveCommType, kind.upper()), size)


def subjects(findings: Iterable[Finding]) -> list[str]:
    return [finding.subject for finding in findings if not finding.agrees]


def test_a_faithful_trace_agrees(case: Case, tmp_path: Path) -> None:
    findings = compare_rank(case, 0, written(tmp_path, faithful_nodes()))
    assert subjects(findings) == []
    assert [f.subject for f in findings] == [
        "FLOPs fwd attention",
        "FLOPs fwd matmul",
        "FLOPs bwd matmul",
        "collectives fwd",
        "collectives bwd",
        "order over the step",
        "bytes of parameters",
        "bytes of gradients",
        "bytes of optimizer state",
    ]


@pytest.mark.parametrize(
    ("drop", "wrong"),
    [
        (2, ["FLOPs fwd matmul"]),
        (4, ["FLOPs fwd attention"]),
        (5, ["collectives fwd"]),
        (6, ["collectives bwd"]),
        (7, ["FLOPs bwd matmul"]),
        (13, ["collectives bwd"]),
    ],
)
def test_a_missing_node_is_found(case: Case, tmp_path: Path, drop: int, wrong: list[str]) -> None:
    nodes = [n for n in faithful_nodes() if n.id != drop]
    assert subjects(compare_rank(case, 0, written(tmp_path, nodes))) == wrong


def test_the_same_flops_in_other_pieces_are_found(case: Case, tmp_path: Path) -> None:
    nodes = [n for n in faithful_nodes() if n.id not in (2, 3)]
    nodes.append(node(2, "fwd/Block/contract", NodeType.COMP_NODE, num_ops=150))
    nodes.append(node(3, "fwd/Block/contract", NodeType.COMP_NODE, num_ops=50))
    findings = compare_rank(case, 0, written(tmp_path, nodes))
    assert subjects(findings) == ["FLOPs fwd matmul"]
    assert next(f for f in findings if not f.agrees).details == (
        "ops of 50 FLOPs: 0 measured, 1 traced",
        "ops of 100 FLOPs: 2 measured, 0 traced",
        "ops of 150 FLOPs: 0 measured, 1 traced",
    )


def test_another_order_is_found(case: Case, tmp_path: Path) -> None:
    nodes = faithful_nodes()
    nodes[1], nodes[5] = nodes[5], nodes[1]
    findings = compare_rank(case, 0, written(tmp_path, nodes))
    assert subjects(findings) == ["collectives fwd"]
    details = next(f for f in findings if not f.agrees).details
    assert details[0] == "the same, in another order"


def test_a_gradient_that_is_reduced_elsewhere_is_found(case: Case, tmp_path: Path) -> None:
    """A norm's, after the backward pass instead of behind its layer."""
    nodes = faithful_nodes()
    moved = [n for n in nodes if n.id != 13] + [n for n in nodes if n.id == 13]
    assert subjects(compare_rank(case, 0, written(tmp_path, moved))) == ["collectives bwd"]


@pytest.mark.parametrize("reads", [8, 10, 12])
def test_other_reads_of_gradients_are_found(tmp_path: Path, reads: int) -> None:
    """Three gradients are read three times each by the update of a loop over tensors, not four times nor some of them more."""
    data = json.loads(case_file(tmp_path).read_text())
    for rank in data["ranks"].values():
        kept = [row for row in rank["collectives"] if row != NORM]
        rank["collectives"] = [*kept, *[NORM] * reads]
    (tmp_path / "small.json").write_text(json.dumps(data))
    case = read_case(tmp_path / "small.json")
    found = subjects(compare_rank(case, 0, written(tmp_path, faithful_nodes())))
    assert found == ["collectives bwd", "collectives optim"]


@pytest.mark.parametrize("field", ["parameters", "gradients", "optimizer"])
def test_a_wrong_byte_is_found(case: Case, tmp_path: Path, field: str) -> None:
    record = written(tmp_path, faithful_nodes())
    assert record.memory is not None
    wrong = replace(record.memory, **{field: getattr(record.memory, field) + 1})
    found = subjects(compare_rank(case, 0, replace(record, memory=wrong)))
    assert len(found) == 1 and field in found[0]


def test_differences_say_where_and_what() -> None:
    gather = Communication("fwd", "all_gather", "bf16", 1, 2, "tp", (0, 1))
    scatter = replace(gather, kind="reduce_scatter", scope="Block.h")
    assert differences([gather, gather], [gather, scatter]) == [
        "   1 - all_gather bf16 1 -> 2 tp [0, 1]",
        "   1 + reduce_scatter bf16 1 -> 2 tp [0, 1]  Block.h",
    ]


def test_order_between_axes_is_named() -> None:
    tp = Communication("fwd", "all_gather", "bf16", 1, 2, "tp", (0, 1))
    dp = replace(tp, axis="dp", ranks=(0, 2))
    assert differences([tp, dp], [dp, tp])[0] == "the same, in another order between axes"


def test_names_come_apart() -> None:
    assert parts("bwd/Block.wq/all_gather[bf16]/L003/m01") == {
        "phase": "bwd",
        "scope": "Block.wq",
        "op": "all_gather",
        "dtype": "bf16",
    }
    assert parts("optim/optimizer_step")["scope"] == ""


def test_bytes_in_and_out() -> None:
    assert collective_bytes("all_gather", 8, 4) == (8, 32)
    assert collective_bytes("reduce_scatter", 8, 4) == (8, 2)
    assert collective_bytes("all_reduce", 8, 4) == (8, 8)


def test_ranks_are_shown_as_runs() -> None:
    assert ranks_text([0, 1, 2, 5]) == "0-2, 5"


def test_axes_of_a_group() -> None:
    mesh = {"pp": 2, "dp": 2, "tp": 2}
    assert axes_of((0, 1), mesh) == "tp"
    assert axes_of((1, 3), mesh) == "dp"
    assert axes_of((0, 2, 4, 6), mesh) == "pp+dp"


def test_the_documentation_has_the_tools_table() -> None:
    assert list(table_rows()) == [entry.name for entry in ENTRIES]


def test_entries_apply_where_they_should(case: Case, tmp_path: Path) -> None:
    assert applying(case) == [
        "repeated-reductions",
        "vocabulary-gradient",
        "optimizer-steps",
        "loss-statistics",
    ]
    forward = read_case(case_file(tmp_path, opts={"infer": "prefill"}))
    assert "optimizer-steps" not in applying(forward)


def test_nothing_hangs_on_a_cases_name(tmp_path: Path) -> None:
    texts = {stg_text(read_case(case_file(tmp_path, name=name))) for name in ("a", "llama_tp2")}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("parallel", "line"),
    [
        ({"tp": 2}, "collectives { reduce = eager, bias = before }"),
        ({"tp": 2}, "shard Llama.logits[V] over none"),
        ({"tp": 2, "tp_mode": "sp"}, "shard S over tp"),
        ({"tp": 2, "tp_embed": "replicate"}, "shard Llama.embed[V] over none"),
        ({"tp": 2, "tp_head": "none"}, "shard Llama.embed[V] over tp"),
        ({"tp": 2, "tp_head": "none", "tp_embed": "replicate"}, "shard H, F over tp"),
    ],
)
def test_the_plan_says_what_was_measured(
    tmp_path: Path, parallel: dict[str, Any], line: str
) -> None:
    text = stg_text(read_case(case_file(tmp_path, parallel=parallel)))
    assert re.search(rf"^  {re.escape(line)}$", text, re.MULTILINE), text


@pytest.mark.parametrize(
    ("opts", "line"),
    [
        ({"infer": "prefill"}, "serve { prefill 2 x 4, logits = all }"),
        ({"infer": "decode", "context": 9}, "serve { decode 2 at 9, logits = all }"),
    ],
)
def test_inference_is_served(tmp_path: Path, opts: dict[str, Any], line: str) -> None:
    case = read_case(case_file(tmp_path, opts=opts, parallel={"tp": 2}))
    text = stg_text(case)
    assert f"  {line}\n" in text
    assert "append(past_k, k)" in text


def test_a_wrong_cache_is_found(tmp_path: Path) -> None:
    """Keys and values of 2 sequences, 4 positions, a head of 4 elements, in fp32."""
    case = read_case(case_file(tmp_path, opts={"infer": "prefill"}))
    record = written(tmp_path, faithful_nodes())
    assert record.memory is not None
    for num_bytes, is_wrong in ((2 * 2 * 4 * 4 * 4, False), (255, True)):
        memory = replace(record.memory, cache=num_bytes)
        found = subjects(compare_rank(case, 0, replace(record, memory=memory)))
        assert ("bytes of caches" in found) == is_wrong


def test_computes_compare_by_kind() -> None:
    record = RankRecord((Compute("fwd", "matmul", 2), Compute("fwd", "matmul", 3)), (), None)
    assert record.flops() == {("fwd", "matmul"): 5}
