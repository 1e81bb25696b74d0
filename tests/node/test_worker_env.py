"""Ranks, addresses and arguments of workers."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.ids import Env
from hpc_elastic.node.workers.worker_env import (
    RankPlace,
    RunEnv,
    place_of,
    substitute,
    substitute_texts,
    tracker_env,
    worker_env,
)
from hpc_elastic.record.journal import MarkedCheckpoint, Member, RoundFormed
from tests.meet.build import E0, member, node_id

MEMBERS = (member("n1", 2, "trainer"), member("n2", 3, "reader"), member("n3", 1, "trainer"))
ROUND = RoundFormed(4, E0, MEMBERS, "n1.cluster", 29_000, None)
RUN = RunEnv("run-1", "/runs/run-1", "n3", max_restarts=3)


def env_of(node: str, local_rank: int, run: RunEnv = RUN, formed: RoundFormed = ROUND) -> dict[str, str]:
    """Return a worker's environment after two failures."""
    return worker_env(formed, node_id(node), local_rank, run, restarts=2)


def test_torch_finds_its_variables() -> None:
    """A worker gets torchrun's variables, with nodes of different sizes and roles."""
    assert {
        "LOCAL_RANK": "0",
        "RANK": "5",
        "GROUP_RANK": "2",
        "ROLE_RANK": "2",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "1",
        "WORLD_SIZE": "6",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_WORLD_SIZE": "3",
        "MASTER_ADDR": "n1.cluster",
        "MASTER_PORT": "29000",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "run-1",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        Env.RUN_DIR: "/runs/run-1",
        Env.RUN_ID: "run-1",
        Env.ROUND: "4",
        Env.NODE: "n3",
        Env.CHECKPOINT: "",
    } == env_of("n3", 0)


def test_a_fixed_address_beats_the_rounds() -> None:
    """Who names an address and port for the process group gets them."""
    env = env_of("n1", 0, RUN._replace(master_addr="10.0.0.1", master_port=1234))
    assert ("10.0.0.1", "1234") == (env["MASTER_ADDR"], env["MASTER_PORT"])


def test_all_ranks_resume_from_the_rounds_checkpoint() -> None:
    """The checkpoint of the round's record is handed to every worker."""
    formed = ROUND._replace(checkpoint=MarkedCheckpoint(120, "/saved/ö 120.pt"))
    for node, local_rank in (("n1", 1), ("n3", 0)):
        saved = json.loads(env_of(node, local_rank, formed=formed)[Env.CHECKPOINT])
        assert {"step": 120, "path": "/saved/ö 120.pt"} == saved


def test_defaults_come_along() -> None:
    """Defaults for variables that the agent's environment lacks are set."""
    env = env_of("n1", 0, RUN._replace(defaults=(("OMP_NUM_THREADS", "4"),)))
    assert "4" == env["OMP_NUM_THREADS"]


@given(
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    roles=st.lists(st.sampled_from("ab"), min_size=5),
)
def test_ranks_are_complete(slots: list[int], roles: list[str]) -> None:
    """Over all nodes each global rank, and each rank within a role, is given once."""
    members = tuple(Member(f"n{i}.1", f"n{i}", count, roles[i]) for i, count in enumerate(slots))
    ranks, role_ranks = [], []
    for one in members:
        place = place_of(members, one.node_id)
        for local_rank in range(one.slots):
            rank, role_rank = place.worker(local_rank)
            ranks.append(rank)
            role_ranks.append((one.role, role_rank, place.role_world_size))
        assert sum(slots) == place.world_size
    assert list(range(sum(slots))) == ranks
    for role in set(roles[: len(slots)]):
        own = [(rank, size) for name, rank, size in role_ranks if name == role]
        assert [(i, len(own)) for i in range(len(own))] == sorted(own)


def test_local_rank_is_filled_in() -> None:
    """``${local_rank}`` is replaced in arguments of any type; nothing else is touched."""
    args = ["--gpu=${local_rank}", 7, "${HOME}", "$local_rank", "$$", "${local_rank}${local_rank}", "${"]
    assert ["--gpu=2", "7", "${HOME}", "$local_rank", "$$", "22", "${"] == substitute(args, 2)


def test_a_dollar_beside_the_macro_stays() -> None:
    """An argument that has the macro keeps its other dollar signs."""
    assert ["1 $$ $x ${y} $local_rank"] == substitute(["${local_rank} $$ $x ${y} $local_rank"], 1)


def test_arguments_of_functions_keep_their_types() -> None:
    """Only texts have a macro."""
    assert ("rank 2", 7, None, ["${local_rank}"]) == substitute_texts(
        ["rank ${local_rank}", 7, None, ["${local_rank}"]], 2
    )


def test_the_workers_of_a_role_are_those_of_its_nodes() -> None:
    """However many the other roles have."""
    members = (member("n1", 2, "trainer"), member("n2", 7, "reader"), member("n3", 1, "trainer"))
    places = [place_of(members, one.node_id) for one in members]
    assert [(0, 3), (0, 7), (2, 3)] == [(place.role_base, place.role_world_size) for place in places]


def test_a_worker_has_its_ranks_after_those_before_it() -> None:
    """In the world, and among those of its role."""
    assert [(3, 0), (4, 1), (5, 2)] == [RankPlace(1, 3, 6, 0, 3).worker(rank) for rank in range(3)]
    env = env_of("n2", 2)
    assert ("4", "2") == (env["RANK"], env["ROLE_RANK"])


def test_ids_of_trackers_have_the_length_that_they_may_have() -> None:
    """Comet takes 32 characters or more, Neptune at most 36."""
    names = tracker_env("digits", "/scratch/a")
    assert (32, 32) == (len(names["COMET_EXPERIMENT_KEY"]), len(names["NEPTUNE_CUSTOM_RUN_ID"]))
    assert len("digits-") + 8 == len(names["WANDB_RUN_ID"])
