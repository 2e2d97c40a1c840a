"""Runs these tests under real lit: `lit tests/lit`, in an environment with stagec installed."""

import os
import sys

import lit.formats

config, lit_config = globals()["config"], globals()["lit_config"]
here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))

config.name = "stagec"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".stg"]
config.excludes = ["Output", "inputs"]
config.available_features.add("long_tests")
config.test_source_root = here
config.test_exec_root = lit_config.params.get("exec_root", os.path.join(root, "build", "lit"))
config.environment["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
