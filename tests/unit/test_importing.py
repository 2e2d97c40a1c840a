"""Configurations become models with the parameters, FLOPs and cache that transformers has for them, or a diagnostic."""

from __future__ import annotations

import pytest

from stagec.driver import compile_text
from stagec.importing import import_configuration
from tests.fidelity.configs import judge
from tests.fidelity.configs_pack import unpacked

KNOWN = unpacked()
REFUSED = {"default--mllama"}
"""Architectures of transformers among them that are not imported; the others that are refused have no class there."""


@pytest.mark.parametrize(("name", "config", "oracle"), KNOWN, ids=[name for name, *_ in KNOWN])
def test_configuration_is_exact_or_refused(name: str, config: dict, oracle: dict):
    verdict = judge(name, config, oracle)
    assert not verdict.wrong
    assert not verdict.refused or not verdict.claimed or name in REFUSED


@pytest.mark.parametrize(
    "name",
    [
        "Qwen--Qwen3-0.6B",  # a dense decoder
        "ibm-granite--granite-3.0-1b-a400m-instruct",  # with experts
        "deepseek-ai--DeepSeek-V2-Lite",  # with latent attention
        "google--gemma-3-1b-it",  # with windows
        "default--nemotron_h",  # with states
        "llava-hf--llava-1.5-7b-hf",  # that sees
        "google-t5--t5-base",
    ],
)
def test_plans_to_start_with_compile(name: str):
    config = next(config for known, config, _ in KNOWN if known == name)
    imported = import_configuration(config, name)
    names = [line.split()[1] for line in imported.text.splitlines() if line.startswith("plan ")]
    assert names
    for plan in names:
        assert compile_text(imported.text, f"{name}.stg", plan=plan).plan.name == plan
