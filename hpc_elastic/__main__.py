"""``python -m hpc_elastic``: the same as ``hpc-elastic``."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.isolated:  # by hand; job scripts load nothing for it
        from hpc_elastic.isolated.search_path import drop_callers_directory

        drop_callers_directory()
    from hpc_elastic.cli.main import main

    sys.exit(main(sys.argv[1:]))
