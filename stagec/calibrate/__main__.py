"""`python -m stagec.calibrate ...`: the command `stagec calibrate ...`."""

import importlib
import sys

if __name__ == "__main__":
    # The command line is above this package, and is told so by name.
    sys.exit(importlib.import_module("stagec.cli").main(["calibrate", *sys.argv[1:]]))
