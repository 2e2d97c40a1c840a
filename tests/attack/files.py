"""Files that a user names, which are not what they should be: each ends in a diagnostic, in seconds."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stagec.backend.bundle import Bundle, write_bundle
from stagec.backend.encode import encode_traces
from stagec.backend.writer import WriteOptions, write_traces
from stagec.cli import main, opt_main
from stagec.driver import compile_text
from stagec.editing.language_features import diagnose
from stagec.editing.open_texts import importing
from stagec.ir_text import print_ir
from stagec.plugins import registry
from tests.attack.case import Failure, Kind
from tests.attack.models import MODELS

MOST_SECONDS = 10
"""Of CPU."""
MOST_WALL_SECONDS = 120
"""What waits for anything does so longer than this; what works, on cores that many want, may take as long."""
MOST_MEMORY = 6 << 30
PLAN = "plan p { mesh dp = 2 shard B over dp }\n"
MODEL = MODELS["matrices"] + PLAN
PIPELINE = 'plan p { mesh pp = 2 pipeline L over pp { schedule = "bad.csv", microbatch = 12 } }\n'
CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
}
TABLE = "F0,F1,B0,B1\nF0,B0,F1,B1\n"
LAUNCH = "torchrun pretrain.py --num-layers 2 --tensor-model-parallel-size 2 --micro-batch-size 1\n"
DEVICE = 'base = "h100"\ntitle = "ours"\n'
ITERATIONS = "prefill,decode\n1x8@16,3@24\n,4@25\n"
REQUESTS = "arrival,prompt,output\n0,8,3\n0.5,8,2\n"
GEMM = "dtype,m,n,k,ms\nbf16,4096,4096,4096,0.3\nbf16,64,4096,4096,0.02\n"
SHARES = "1,1,1,1,1,1,1,1\n" * 4
LOADED = 'plan p { mesh ep = 2 shard B over ep shard X over ep load { file = "bad.csv" } }\n'
SERVING = """dim B = 4
dim S = 8
dim P = S
dim D = 32
dim H = 4
dim E = 8
dim L = 2
module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  cache past_k[B, P, H, E], past_v[B, P, H, E]
  k[B, P, H, E] = append(past_k, x @ wk)
  v[B, P, H, E] = append(past_v, x @ wv)
  return attention(x @ wq, k, v, causal = true) @ wo
}
model Net(x[B, S, D]) {
  weight last[D]
  repeat L { x = x + Attention(x) }
  return x * last
}
plan p { mesh one = 1 device h100 serve { decode 4 at 64, block = 8 } }
"""

COMMANDS: dict[str, tuple[str, str]] = {
    "stagec bad.stg": ("bad.stg", MODEL),
    "stagec bad.stg -o out": ("bad.stg", MODEL),
    "stagec bad.mlir": ("bad.mlir", "ir"),
    "stagec model.stg --plan bad.stg:p": ("bad.stg", MODEL),
    "stagec imports.stg": ("bad.stg", MODELS["matrices"]),
    "stagec schedule.stg": ("bad.csv", TABLE),
    "stagec model.stg --device ./bad.toml": ("bad.toml", DEVICE),
    "stagec model.stg --network bad.json": ("bad.json", "{}"),
    "stagec model.stg --load-pass bad.py": ("bad.py", "x = 1\n"),
    "stagec model.stg -o bad": ("bad", "something"),
    "stagec model.stg -o set": ("set/manifest.json", "manifest"),
    "stagec model.stg --report bad.html": ("bad.html", "something"),
    "stagec explain bad.stg flops": ("bad.stg", MODEL),
    "stagec fmt bad.stg": ("bad.stg", MODEL),
    "stagec diff model.stg bad.stg": ("bad.stg", MODEL),
    "stagec diff set bad": ("bad", "something"),
    "stagec report model.stg bad.stg": ("bad.stg", MODEL),
    "stagec check set": ("set/Net.1.et", "trace"),
    "stagec check set --target none": ("set/comm_group.json", "{}"),
    "stagec check set --comm-group bad.json": ("bad.json", "{}"),
    "stagec check set --log bad.log": ("bad.log", "finished, 10 cycles\n"),
    "stagec diff set other": ("set/Net.0.et", "trace"),
    "stagec diff set other --all": ("set/manifest.json", "manifest"),
    "stagec expand bad.stagec -o out": ("bad.stagec", "bundle"),
    "stagec import bad.json": ("bad.json", json.dumps(CONFIGURATION)),
    "stagec import folder": ("folder/config.json", json.dumps(CONFIGURATION)),
    "stagec import bad.sh --gpus 2": ("bad.sh", LAUNCH),
    "stagec import launch.sh --gpus 2": ("bad.sh", "TP=2\n"),
    "stagec import bad.toml --gpus 2": ("bad.toml", "[parallelism]\ntensor_parallel_degree = 2\n"),
    "stagec import bad.json --kind deepspeed --gpus 2": (
        "bad.json",
        '{"zero_optimization": {"stage": 3}}',
    ),
    "stagec devices ./bad.toml": ("bad.toml", DEVICE),
    "stagec calibrate h100 bad.csv -o new.toml": ("bad.csv", "m,n,k\n1,2,3\n"),
    "stagec calibrate h100 bad.json -o new.toml": ("bad.json", '{"traceEvents": []}'),
    "stagec calibrate h100 bad.et -o new.toml": ("bad.et", "trace"),
    "stagec calibrate h100 folder -o new.toml": ("folder/gemm.csv", GEMM),
    "stagec calibrate ./bad.toml set -o new.toml": ("bad.toml", DEVICE),
    "stagec search bad.stg --devices 2 --device h100 --executor serial": ("bad.stg", MODEL),
    "stagec search model.stg --devices 2 --device h100 --executor serial --space bad.toml": (
        "bad.toml",
        "tp = [1]\n",
    ),
    "stagec serving.stg --iterations bad.csv": ("bad.csv", ITERATIONS),
    "stagec serving.stg --iterations bad.csv -o out": ("bad.csv", ITERATIONS),
    "stagec batch bad.csv serving.stg -o out.csv": ("bad.csv", REQUESTS),
    "stagec search model.stg --devices 2 --device h100 --executor serial --cache bad.cache": (
        "bad.cache",
        "cache",
    ),
    "stagec loaded.stg": ("bad.csv", SHARES),
    "stagec device.stg": ("bad.toml", DEVICE),
    "stagec model.stg -o set --resume": ("set/manifest.json", "manifest"),
    "stagec model.stg --resume -o bad": ("bad", "something"),
    "stagec model.stg --bundle bad": ("bad", "something"),
    "stagec model.stg --memory bad.html": ("bad.html", "something"),
    "stagec model.stg --timeline bad.json": ("bad.json", "something"),
    "lsp imports.stg": ("bad.stg", MODELS["matrices"]),
    "lsp schedule.stg": ("bad.csv", TABLE),
    "lsp loaded.stg": ("bad.csv", SHARES),
    "lsp device.stg": ("bad.toml", DEVICE),
    "lsp model.stg": ("folder/bad.stg", MODEL),
    "stagec-opt bad.mlir": ("bad.mlir", "ir"),
    "stagec-opt good.mlir -o bad": ("bad", "something"),
}
"""Of each: the file that is bad, and what would be in it."""


def deep(path: Path, _: bytes, draw: random.Random) -> None:
    path.write_text(draw.choice(("[", '{"a":', "(", "a = [", "[[")) * 200_000)


def truncated(path: Path, good: bytes, draw: random.Random) -> None:
    path.write_bytes(good[: draw.randrange(len(good) + 1)])


def changed(path: Path, good: bytes, draw: random.Random) -> None:
    data = bytearray(good)
    for _ in range(draw.randint(1, 8)):
        if data:
            data[draw.randrange(len(data))] = draw.randrange(256)
    path.write_bytes(data)


def sparse(path: Path, good: bytes, draw: random.Random) -> None:
    path.write_bytes(good)
    os.truncate(path, 20 << 30)


def loop(path: Path, *_: object) -> None:
    path.symlink_to(path.name)


ODD: dict[str, Callable[[Path, bytes, random.Random], object]] = {
    "a pipe": lambda path, *_: os.mkfifo(path),
    "zeros without end": lambda path, *_: path.symlink_to("/dev/zero"),
    "nothing": lambda path, *_: path.symlink_to("/dev/null"),
    "an empty file": lambda path, *_: path.write_bytes(b""),
    "the kernel's log": lambda path, *_: path.symlink_to("/proc/kmsg"),
    "memory": lambda path, *_: path.symlink_to("/proc/self/mem"),
    "20 GB of nothing": sparse,
    "a directory": lambda path, *_: path.mkdir(),
    "noise": lambda path, _, draw: path.write_bytes(draw.randbytes(5000)),
    "a part": truncated,
    "changed bytes": changed,
    "deep nesting": deep,
    "nowhere": lambda path, *_: path.symlink_to("nowhere"),
    "a loop": loop,
    "a long line": lambda path, *_: path.write_bytes(b"x" * 3_000_000),
    "zero bytes": lambda path, good, _: path.write_bytes(b"\0" * 100 + good),
}


@dataclass(frozen=True)
class Case:
    command: str
    odd: str
    seed: int


@lru_cache
def template() -> str:
    """A folder with everything that is not bad."""
    folder = tempfile.mkdtemp(prefix="attack")
    compiled = compile_text(MODEL, "model.stg", "p")
    encoded = encode_traces(compiled.trace_set)
    for name in ("set", "other"):
        write_traces(encoded, f"{folder}/{name}", WriteOptions(executor="serial"))
    write_bundle(f"{folder}/bundle", Bundle(encoded))
    texts = {
        "model.stg": MODEL,
        "imports.stg": f'import "bad.stg"\n{PLAN}',
        "schedule.stg": MODELS["matrices"] + PIPELINE,
        "good.mlir": print_ir(compiled.module),
        "launch.sh": f"source ./bad.sh\n{LAUNCH}",
        "serving.stg": SERVING,
        "loaded.stg": MODELS["experts"] + LOADED,
        "device.stg": MODELS["matrices"]
        + 'plan p { mesh dp = 2 device "bad.toml" shard B over dp }\n',
    }
    for name, text in texts.items():
        Path(folder, name).write_text(text)
    os.mkdir(f"{folder}/folder")
    search = f"search {folder}/model.stg --devices 2 --device h100 --executor serial --cache {folder}/cache"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(search.split())
    return folder


def good(what: str) -> bytes:
    folder = template()
    known = {
        "ir": "good.mlir",
        "trace": "set/Net.1.et",
        "manifest": "set/manifest.json",
        "bundle": "bundle",
        "cache": "cache",
    }
    return Path(folder, known[what]).read_bytes() if what in known else what.encode()


def make(draw: random.Random) -> Case:
    return Case(draw.choice(list(COMMANDS)), draw.choice(list(ODD)), draw.randrange(1 << 30))


def run(case: Case) -> None:
    name, what = COMMANDS[case.command]
    with tempfile.TemporaryDirectory() as parent:
        folder = f"{parent}/files"
        shutil.copytree(template(), folder)
        path = Path(folder, name)
        path.unlink(missing_ok=True)
        ODD[case.odd](path, good(what), random.Random(case.seed))
        status, said = ended(case.command.split(), folder, f"{parent}/said")
    if status not in (0, 1, 3):
        raise Failure(f"{ended_how(status)}: {said[-2000:]}")
    if "Traceback" in said or "bug in stagec" in said:
        raise Failure(said[-3000:])
    if status == 1 and "error" not in said and "--log" not in case.command:
        raise Failure(f"no diagnostic: {said}")


def ended_how(status: int) -> str:
    if status == -signal.SIGALRM:
        return f"not done after {MOST_WALL_SECONDS} s"
    return f"ended by signal {-status}" if status < 0 else f"exit status {status}"


def ended(words: list[str], folder: str, said: str) -> tuple[int, str]:
    """Run a command in a child; its exit status, and all that it printed."""
    child = os.fork()
    if child == 0:
        run_in_child(words, folder, said)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), Path(said).read_text(errors="replace")


def run_in_child(words: list[str], folder: str, said: str) -> None:
    status = 99
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(MOST_WALL_SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        out = os.open(said, os.O_WRONLY | os.O_CREAT)
        for number in (1, 2):
            os.dup2(out, number)
        sys.stdout, sys.stderr = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(2), "w")
        os.chdir(folder)
        status = TOOLS[words[0]](words[1:])
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def answer(words: list[str]) -> int:
    """What an editor is told that opens a file: all that a file which it reads can be."""
    path = os.path.abspath(words[0])
    folder = os.path.dirname(path)
    for each in (path, *importing(path, [folder])):
        for diagnostic in diagnose(Path(each).read_text(), each, registry()):
            sys.stderr.write(f"{diagnostic.code}: {diagnostic.message}\n")
    return 0


TOOLS: dict[str, Callable[[list[str]], int]] = {
    "stagec": main,
    "stagec-opt": opt_main,
    "lsp": answer,
}


FILES = Kind("files", make, run, seconds=3 * MOST_SECONDS)
