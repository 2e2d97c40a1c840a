"""`python -m stagec`: the command line where no script is installed."""

import sys

from stagec.cli import main

if __name__ == "__main__":
    sys.exit(main())
