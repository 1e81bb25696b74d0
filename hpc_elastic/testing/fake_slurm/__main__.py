"""Starts the controller: ``python -m hpc_elastic.testing.fake_slurm DIRECTORY SETTINGS SOCKET``."""

from __future__ import annotations

import json
import sys

from hpc_elastic.clock import SystemClock
from hpc_elastic.testing.fake_slurm.cluster.model import Settings
from hpc_elastic.testing.fake_slurm.controller import main

if __name__ == "__main__":
    fields = json.loads(sys.argv[2])
    fields["requeue_exit"] = tuple(fields["requeue_exit"])
    sys.exit(main(sys.argv[1], sys.argv[3], Settings(**fields), SystemClock()))
