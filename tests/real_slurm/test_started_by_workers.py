"""What workers have started themselves lives on while they save, whomever Slurm signals."""

from __future__ import annotations

import json

import pytest

from hpc_elastic.record.checkpoints import newest_step
from hpc_elastic.record.journal import Cause, Drained, DrainExplained, NodeLeft, StopAgreed
from tests.real_slurm.cluster import Cluster
from tests.real_slurm.jobs import PYTHON, installed_for_users, submit

pytestmark = pytest.mark.usefixtures(installed_for_users.__name__)

TWO = ("--nodes", "2", "--gpus-per-node", "1", "--time", "10m", "--partition", "low")
MODES = {"step": TWO, "array": (*TWO, "--mode", "array")}
LOADING = """
import json, multiprocessing, os, signal, subprocess, sys, time
from hpc_elastic import worker

heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(time.monotonic()))  # as many scripts have

def load(asked, given):  # as a DataLoader's process: SIGTERM ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for item in iter(asked.get, None):
        given.put(item + 1)

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    asked, given = context.SimpleQueue(), context.SimpleQueue()
    loaders = [context.Process(target=load, args=(asked, given)) for _ in range(2)]
    for loader in loaders:
        loader.start()
    service = subprocess.Popen(  # as a tracker's service: with a session and a handler of its own
        [sys.executable, "-c", "import signal, sys; signal.signal(15, lambda *_: sys.exit(3)); input()"],
        stdin=subprocess.PIPE, start_new_session=True)
    saved = worker.latest_checkpoint()
    step = saved.step if saved else 0
    while True:
        asked.put(step)
        assert given.get() == step + 1
        time.sleep(0.02)
        step += 1
        worker.tick(step)
        if worker.should_stop():
            ended = [loader.exitcode for loader in loaders]
            facts = {"loaders": ended, "service": service.poll(), "heard": len(heard)}
            with worker.atomic_write(os.path.join(worker.run_dir(), "alive." + os.environ["RANK"])) as file:
                file.write(json.dumps(facts).encode())
            worker.checkpoint_saved(step, shards=2)
            break
        if step == 5:
            open(os.path.join(worker.run_dir(), "runs." + os.environ["RANK"]), "w").close()
    for loader in loaders:
        asked.put(None)
    service.kill()
"""


@pytest.mark.both_trackers
@pytest.mark.parametrize("mode", MODES)
def test_a_preemption_does_not_end_what_workers_have_started(cluster: Cluster, mode: str) -> None:
    """Loaders and services are there until the save is done, and no worker's handler is called over it."""
    script = cluster.shared / "loading.py"
    script.write_text(LOADING)
    run = submit(cluster, MODES[mode], [PYTHON, str(script)])
    cluster.wait_for(
        lambda: all((run.directory / f"runs.{rank}").exists() for rank in range(2)), 60, "the workers to run"
    )
    cluster.submit_high(4)
    run.wait(lambda _state: bool(run.entries(Drained if mode == "step" else NodeLeft)), "the end")
    run.cluster.wait_for(lambda: newest_step(run.paths, -1) >= 0, 30, "the save")
    run.wait(lambda _state: bool(run.entries(DrainExplained)), "Slurm's answer")
    run.wait(lambda state: mode == "step" or state.running is None, "the end of the round")
    (agreed,), (explained, *_) = run.entries(StopAgreed), run.entries(DrainExplained)
    assert Cause.PREEMPTION is explained.cause
    assert agreed.step == newest_step(run.paths, -1)
    for rank in range(2):
        facts = json.loads((run.directory / f"alive.{rank}").read_text())
        assert {"loaders": [None, None], "service": None, "heard": 0} == facts
