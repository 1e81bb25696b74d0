"""``python -m hpc_elastic.run``: the same as ``hpc-elastic run``."""

from __future__ import annotations

import sys

from hpc_elastic.cli.run_command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
