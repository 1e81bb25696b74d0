"""``python -m hpc_elastic``: the same as ``hpc-elastic``."""

import sys

if __name__ == "__main__":
    if not sys.flags.isolated:  # by hand; job scripts load nothing for it
        from hpc_elastic.isolated.callers_path import drop_callers_places

        drop_callers_places()
    from hpc_elastic.cli.main import main

    sys.exit(main(sys.argv[1:]))
