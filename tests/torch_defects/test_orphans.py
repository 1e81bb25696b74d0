"""SIGKILL of a launcher leaves nothing: no worker, and nothing that a worker has started.

Elsewhere workers are in sessions of their own and hear nothing of it; their GPUs stay taken.
"""

from __future__ import annotations

from tests.multiprocessing.waiting import wait_gone
from tests.node.agents import SLEEP
from tests.torch_defects.launches import TELL, MakeLaunches

PARENTS = f"""{TELL}
import subprocess
loader = subprocess.Popen(["sleep", "600"])
detached = subprocess.Popen(["setsid", "sleep", "600"], env={{}})
script = ["sh", "-c", "sleep 600 & echo $!; wait"]
wrapper = subprocess.Popen(script, stdout=subprocess.PIPE, start_new_session=True)
tell(".pids", worker=os.getpid(), loader=loader.pid, detached=detached.pid, wrapper=wrapper.pid,
     below=int(wrapper.stdout.readline()))
{SLEEP}
"""


def test_nothing_outlives_a_killed_launcher(make: MakeLaunches) -> None:
    """Workers, their children in other sessions and without their environment, and theirs again end."""
    launches = make(PARENTS)
    launcher = launches.start(0, "--nproc-per-node", "2")
    started = launches.told(".pids", 2)
    launcher.kill()
    for pids in started:
        for pid in pids.values():
            wait_gone(pid)
