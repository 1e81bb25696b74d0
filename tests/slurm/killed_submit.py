"""Runs hpc-elastic, and kills itself before its Nth change of a file from the run directory on.

Called as: killed_submit.py N RUN_DIR WORD...
"""

from __future__ import annotations

import os
import signal
import sys

from hpc_elastic.cli.main import main

_CHANGES = ("os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "subprocess.Popen")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killer:
    """Counts changes once the run directory is there."""

    def __init__(self, left: int, root: str) -> None:
        self.left = left
        self.root = root

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        """Hear of what the interpreter is about to do."""
        writes = event == "open" and isinstance(args[2], int) and bool(args[2] & _WRITES)
        if (writes or event in _CHANGES) and os.path.isdir(self.root):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.addaudithook(Killer(int(sys.argv[1]), sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
