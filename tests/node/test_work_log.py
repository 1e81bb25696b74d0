"""What real agents write down of the work of their rounds."""

from __future__ import annotations

import os
from pathlib import Path

from hpc_elastic.account.account import account_of
from hpc_elastic.account.facts import Doing
from hpc_elastic.account.read import read_facts
from hpc_elastic.account.spans import Bucket, History
from hpc_elastic.meet.member_names import Phase, parse_name
from hpc_elastic.record.journal import Cause
from hpc_elastic.record.run_log import read_records
from tests.node.agents import MakeAgents

TRAIN = """
import glob, time
from hpc_elastic import worker
saved = worker.latest_checkpoint()
step = saved.step if saved else 0
for step in range(step + 1, 9):
    worker.tick(step, total=8)
    if step == 4 and os.environ["HPC_ELASTIC_ROUND"] == "1":
        if os.environ["RANK"] == "0":
            worker.checkpoint_saved(4)
        worker.tick(5)
        open(f"{worker.run_dir()}.{os.environ['RANK']}.there", "w").close()
        if os.environ["RANK"] == "3":
            while len(glob.glob(worker.run_dir() + ".*.there")) < int(os.environ["WORLD_SIZE"]):
                time.sleep(0.01)
            sys.exit(3)
"""


def test_two_nodes_write_how_far_a_round_is(make: MakeAgents) -> None:
    """The first two of three nodes write down start, import, last step and end of each round."""
    agents = make(TRAIN)
    for node in range(3):
        agents.start(node, "--nnodes", "3", "--max-restarts", "1")
    assert [0, 0, 0] == [agents.code(node) for node in range(3)]
    facts = read_facts(agents.paths)
    assert 2 == len({fact.agent for fact in facts})
    for number in (1, 2):
        for agent in {fact.agent for fact in facts}:
            mine = [fact for fact in facts if (fact.round, fact.agent) == (number, agent)]
            assert [Doing.STARTED, Doing.IMPORTED] == [fact.doing for fact in mine[:2]]
            assert Doing.GONE is mine[-1].doing
            assert sorted(fact.mono for fact in mine[:2]) == [fact.mono for fact in mine[:2]]
    last = max((fact for fact in facts if fact.doing is Doing.STEP), key=lambda fact: (fact.round, fact.step))
    assert (2, 8, 8) == (last.round, last.step, last.total)


def test_the_account_of_a_real_run(make: MakeAgents) -> None:
    """A real run with a crash has one stop with its cause, and seconds in the buckets of a restart."""
    agents = make(TRAIN)
    for node in range(2):
        agents.start(node, "--nnodes", "2", "--max-restarts", "1")
    assert [0, 0] == [agents.code(node) for node in range(2)]
    account = account_of(History(read_records(agents.paths), read_facts(agents.paths)))
    (stop,) = account.stops
    assert (Cause.CRASH, 1, 4) == (stop.stop.cause, stop.stop.round, stop.stop.resumed)
    assert {Bucket.IMPORTING, Bucket.STOPPING, Bucket.MEETING} < set(account.seconds)
    assert 0 < stop.seconds <= account.wall_s


TEAR = """
import glob
if os.environ["HPC_ELASTIC_ROUND"] == "1":
    (path,) = glob.glob(os.environ["HPC_ELASTIC_RUN_DIR"] + "/account/*.log")
    open(path, "ab").write(b'{"r":1,"d":"st')
    sys.exit(3)
"""


def test_a_torn_line_is_ended(make: MakeAgents) -> None:
    """The lines of the next round stand behind the part of a line that a lost writer has left."""
    agents = make(TEAR)
    agents.start(0, "--nnodes", "1", "--nproc-per-node", "1", "--max-restarts", "1")
    assert 0 == agents.code(0)
    found = [(fact.round, fact.doing) for fact in read_facts(agents.paths)]
    assert [(1, Doing.STARTED), (2, Doing.STARTED), (2, Doing.GONE)] == found


LINKED = """
import glob
if os.environ["HPC_ELASTIC_ROUND"] == "1":
    (path,) = glob.glob(os.environ["HPC_ELASTIC_RUN_DIR"] + "/account/*.log")
    os.unlink(path)
    os.symlink(os.environ["HPC_ELASTIC_RUN_DIR"] + "/elsewhere", path)
    sys.exit(3)
"""


def test_a_link_in_the_place_of_the_file_is_not_followed(make: MakeAgents) -> None:
    """The run goes on without its lines, and nothing is written where the link leads."""
    agents = make(LINKED)
    agents.start(0, "--nnodes", "1", "--nproc-per-node", "1", "--max-restarts", "1")
    assert 0 == agents.code(0)
    assert not (Path(agents.paths.root) / "elsewhere").exists()
    assert [] == read_facts(agents.paths)


TOLD = """
import time
from hpc_elastic import worker
from hpc_elastic.meet.member_names import parse_name
worker.tick(7 + int(os.environ["RANK"]))
members = os.environ["HPC_ELASTIC_RUN_DIR"] + "/members"
while not any(name and name.rank_steps == (7, 8) for name in map(parse_name, os.listdir(members))):
    time.sleep(0.01)
"""


def test_the_heartbeat_shows_the_steps_of_the_ranks(make: MakeAgents) -> None:
    """The name of a running agent has the newest step of each of its ranks; these workers wait for it."""
    agents = make(TOLD)
    agents.start(0, "--nnodes", "1", "--nproc-per-node", "2")
    assert 0 == agents.code(0)
    (left,) = filter(None, map(parse_name, os.listdir(agents.paths.members)))
    assert (Phase.SUCCEEDED, ()) == (left.phase, left.rank_steps)
