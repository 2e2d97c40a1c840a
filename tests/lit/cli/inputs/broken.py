"""A file for `--load-pass` that cannot be imported."""

import a_package_that_is_not_there

__all__ = ["a_package_that_is_not_there"]
