"""A file for `--load-pass` without a pass."""
