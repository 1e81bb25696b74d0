"""Which ranks are the odd ones out."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.node.hangs.groups import (
    Frame,
    RankLook,
    frames_of,
    main_stack,
    odd_ones,
    ranks_text,
    vote_text,
)

WAIT = (Frame("all_reduce", "/venv/torch/distributed_c10d.py", "2806"), Frame("step", "train.py", "40"))
LOAD = (
    Frame("wait", "/usr/lib/python3.11/threading.py", "320"),
    Frame("__next__", "/venv/torch/dataloader.py", "630"),
    Frame("step", "train.py", "38"),
)
OTHER_WAY = (WAIT[0], Frame("barrier", "extra.py", "7"), Frame("step", "train.py", "55"))

PY_SPY = """Process 4242: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 4242 (idle): "MainThread"
    wait (threading.py:320)
    __next__ (torch/utils/data/dataloader.py:630)
    <module> (train.py:38)
Thread 4243 (idle): "Thread-1"
    run (helper.py:3)
"""


def looks(*places: tuple[int | None, tuple[Frame, ...]], node_of: int = 2) -> list[RankLook]:
    """Return ranks at a step and in a stack each, `node_of` on each node."""
    return [
        RankLook(rank, f"n{rank // node_of + 1}", step, frames=frames)
        for rank, (step, frames) in enumerate(places)
    ]


def odd(*places: tuple[int | None, tuple[Frame, ...]]) -> list[int]:
    """Return the odd ranks."""
    return [look.rank for look in odd_ones(looks(*places)).odd]


def test_one_in_another_place() -> None:
    """By step and by stack, whichever tells them apart."""
    assert [3] == odd((119, WAIT), (119, WAIT), (119, WAIT), (118, LOAD))
    assert [3] == odd((119, WAIT), (119, WAIT), (119, WAIT), (119, LOAD))
    assert [3] == odd((119, WAIT), (119, WAIT), (119, WAIT), (118, WAIT))
    assert [3] == odd((119, WAIT), (119, WAIT), (119, WAIT), (120, LOAD))
    assert [0, 3] == odd((118, LOAD), (119, WAIT), (119, WAIT), (118, LOAD), (119, WAIT))


def test_lines_of_a_loop_and_paths_of_nodes_do_not_count() -> None:
    """The same call in another turn, or from another copy of the library."""
    elsewhere = (Frame("all_reduce", "/scratch/n2/torch/distributed_c10d.py", "2807"), WAIT[1])
    assert [3] == odd((119, WAIT), (119, elsewhere), (119, WAIT), (119, LOAD))


def test_ways_to_the_same_call_are_one_place_if_need_be() -> None:
    """Half of the ranks have come to it from elsewhere."""
    assert [4] == odd((119, WAIT), (119, WAIT), (119, OTHER_WAY), (119, OTHER_WAY), (119, LOAD))


def test_without_a_majority_who_is_behind_is_odd() -> None:
    """Two of four; and nobody if all are at the same step in as many places."""
    assert [2, 3] == odd((119, WAIT), (119, WAIT), (118, LOAD), (118, LOAD))
    assert [] == odd((119, WAIT), (119, WAIT), (119, LOAD), (119, LOAD))
    assert [1] == odd((5, ()), (None, ()))


def silent_for(*seconds: float, steps: tuple[int, ...] = ()) -> list[RankLook]:
    """Return ranks that have made no progress for so long, in steps that may be given."""
    told = steps or tuple(range(100, 100 + len(seconds)))
    return [
        RankLook(rank, f"n{rank // 2 + 1}", step, frames=LOAD if rank % 2 else WAIT, silence_s=silence)
        for rank, (silence, step) in enumerate(zip(seconds, told, strict=True))
    ]


def test_a_rank_that_goes_on_is_never_the_odd_one() -> None:
    """It is a slower one of a run that is not in lockstep; the rank that sleeps is ahead of it."""
    told = silent_for(0.2, 0.1, 0.3, 8.1, 0.1, 0.0, 0.2, 0.1, steps=(950, 951, 949, 900, 950, 897, 952, 950))
    vote = odd_ones(told, {3})
    assert [3] == [look.rank for look in vote.odd]
    assert not vote.in_lockstep
    text = vote_text(vote, told)
    assert text.startswith("rank 3 (n2): step 900")
    assert text.endswith("they go on: the ranks are not in lockstep")


def test_of_several_that_are_silent_the_one_that_fell_silent_first_comes_first() -> None:
    """The others may wait for it."""
    vote = odd_ones(silent_for(0.1, 6.0, 9.0, 0.2, 0.1, 0.1), {1})
    assert [2, 1] == [look.rank for look in vote.odd]


def test_ranks_in_lockstep_fall_silent_together() -> None:
    """The one that keeps the others waiting is told by its place, as without times."""
    told = silent_for(8.1, 8.0, 8.2, 8.1, steps=(119, 119, 119, 118))
    told = [look._replace(frames=LOAD if look.rank == 3 else WAIT) for look in told]
    vote = odd_ones(told, {0, 1})
    assert ([3], True) == ([look.rank for look in vote.odd], vote.in_lockstep)


def test_all_in_one_place_has_no_odd_one() -> None:
    """Nor has nobody at all."""
    assert [] == odd((7, WAIT), (7, WAIT))
    assert ((), ()) == odd_ones([])[:2]


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 2), st.sampled_from([(), WAIT, LOAD, OTHER_WAY])), max_size=9
    )
)
def test_the_odd_ones_are_never_more_than_half(places: list[tuple[int | None, tuple[Frame, ...]]]) -> None:
    """Unless they are behind; who is odd is not also one of the others, and nobody is left out."""
    vote = odd_ones(looks(*places))
    assert not vote.odd or sorted([*vote.odd, *vote.others]) == sorted(looks(*places))
    low = min((-1 if step is None else step for step, _ in places), default=0)
    behind = all((-1 if look.step is None else look.step) == low for look in vote.odd)
    assert len(vote.odd) <= len(places) / 2 or behind
    assert vote_text(vote, looks(*places)) or not places


def test_the_others_are_all_that_are_not_odd() -> None:
    """With a majority, without one, and where nobody is odd."""
    four = looks((119, WAIT), (119, WAIT), (119, WAIT), (118, LOAD))
    assert ((four[3],), tuple(four[:3])) == odd_ones(four)[:2]
    even = looks((119, WAIT), (119, LOAD), (118, LOAD), (118, WAIT))
    assert (tuple(even[2:]), tuple(even[:2])) == odd_ones(even)[:2]
    alike = looks((119, WAIT), (119, WAIT), (119, LOAD), (119, LOAD))
    assert ((), tuple(alike)) == odd_ones(alike)[:2]


def test_half_of_the_ranks_are_no_majority() -> None:
    """Two of four ahead of two that are each somewhere else: who is furthest behind is odd."""
    assert [3] == odd((119, WAIT), (119, WAIT), (118, LOAD), (117, LOAD))


def test_the_section_tells_ranks_apart() -> None:
    """Also where the calls are the same."""
    three = looks((7, WAIT), (7, WAIT), (7, WAIT))
    three[1] = three[1]._replace(section="eval")
    assert (three[1],) == odd_ones(three).odd


def test_the_innermost_call_says_what_it_waits_for() -> None:
    """What merely waits is passed over, unless there is nothing else."""
    assert LOAD[1] == RankLook(0, "n", frames=LOAD).innermost
    assert WAIT[0] == RankLook(0, "n", frames=WAIT).innermost
    assert LOAD[0] == RankLook(0, "n", frames=LOAD[:1]).innermost
    assert RankLook(0, "n").innermost is None


def test_of_many_places_and_frames_only_so_many_are_kept() -> None:
    """Four places in words, 40 calls of a stack."""
    spread = looks(*((7, (Frame(f"call{rank}", "a.py", "1"),)) for rank in range(5)))
    assert vote_text(odd_ones(spread), spread).endswith("; and 1 more places")
    assert "more places" not in vote_text(odd_ones(spread[:4]), spread[:4])
    stack = "\n".join(f'  File "a.py", line {number} in call' for number in range(41))
    assert [str(number) for number in range(40)] == [frame.line for frame in frames_of(stack)]


def test_eight_ranks_are_named_one_by_one() -> None:
    """The ninth is only counted."""
    many = looks(*[(1, WAIT)] * 9, node_of=1)
    eight = "ranks 0 (n1), 1 (n2), 2 (n3), 3 (n4), 4 (n5), 5 (n6), 6 (n7), 7 (n8)"
    assert eight == ranks_text(many[:8])
    assert f"{eight}, and 1 more" == ranks_text(many)


def test_words() -> None:
    """Who it is, where, and where the others are."""
    four = looks((119, WAIT), (119, WAIT), (119, WAIT), (118, LOAD))
    waiting = "step 119, in all_reduce (distributed_c10d.py:2806)"
    loading = "in __next__ (dataloader.py:630)"
    words = f"rank 3 (n2): step 118, {loading}; the 3 others: {waiting}"
    assert words == vote_text(odd_ones(four), four)
    two = looks((119, WAIT), (118, ()))
    two[1] = two[1]._replace(section="eval > load", doing="stuck in the kernel (state D)")
    stuck = "step 118, section eval > load, stuck in the kernel (state D)"
    words = f"rank 1 (n1): {stuck}; the other: {waiting}"
    assert words == vote_text(odd_ones(two), two)
    alone = looks((None, LOAD))
    assert "rank 0 (n1): before the first step, in __next__ (dataloader.py:630)" == vote_text(
        odd_ones(alone), alone
    )
    even = looks((7, WAIT), (7, LOAD))
    assert vote_text(odd_ones(even), even).startswith(
        "no rank stands out: rank 0 (n1): step 7, in all_reduce"
    )


def test_many_ranks_are_not_all_named() -> None:
    """The text stays readable with thousands of them."""
    many = looks(*[(1, LOAD)] * 400, *[(2, WAIT)] * 600)
    text = vote_text(odd_ones(many), many)
    assert "rank 7 (n4) and 392 more" in text.replace("7 (n4),", "rank 7 (n4)")
    assert len(text) < 500
    assert "rank 5 (n3)" == ranks_text([many[5]])


def test_the_main_thread_of_a_real_dump() -> None:
    """Faulthandler writes it last, whatever other threads there are."""
    ready, go = threading.Event(), threading.Event()

    def other() -> None:
        ready.set()
        go.wait()

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        text = file.read()
    go.set()
    thread.join()
    names = [frame.name for frame in frames_of(main_stack(text))]
    assert "other" in text
    assert "test_the_main_thread_of_a_real_dump" == names[0]
    assert "other" not in names


def test_what_py_spy_writes() -> None:
    """It writes the main thread first."""
    frames = frames_of(main_stack(PY_SPY))
    assert ["wait", "__next__", "<module>"] == [frame.name for frame in frames]
    assert "__next__ (dataloader.py:630)" == str(RankLook(0, "n", frames=frames).innermost)


def test_what_py_spy_writes_beside_calls() -> None:
    """Lines that are no calls, such as arguments, do not hide which thread is the main one."""
    text = PY_SPY.replace("    <module>", "        Arguments:\n    <module>")
    assert ["wait", "__next__", "<module>"] == [frame.name for frame in frames_of(main_stack(text))]


def test_empty_lines_are_no_part_of_a_stack() -> None:
    """Neither between two threads nor at the end."""
    text = 'Current thread 0x1 (most recent call first):\n  File "a.py", line 3 in wait\n\n  \n'
    assert '  File "a.py", line 3 in wait' == main_stack(text)


@pytest.mark.parametrize("text", ["", "Killed", "Process 1: x\n", "Fatal Python error\n\nno stack"])
def test_no_stack_at_all(text: str) -> None:
    """Whatever else there is in the file."""
    assert () == frames_of(main_stack(text))


LOOKS = st.builds(
    RankLook,
    st.integers(0, 9999),
    st.text(max_size=5),
    st.none() | st.integers(0, 10**9),
    st.text(max_size=5),
    st.lists(st.builds(Frame, st.text(max_size=5), st.text(max_size=5), st.text(max_size=3))).map(tuple),
)


@given(LOOKS)
def test_what_is_written_is_read(look: RankLook) -> None:
    """By another node."""
    assert look == RankLook.from_json(look.to_json())


def test_each_field_is_read_by_its_kind() -> None:
    """What has another one takes its default, and damaged calls are left out."""
    look = RankLook(3, "n2", 7, "eval", WAIT, "S", "asleep", 1, 77, "/logs/3.err", "stack", 9)
    data = look.to_json()
    assert look == RankLook.from_json(data)
    odd_names = ("section", "state", "doing", "log", "stack", "local_rank", "pid", "moved")
    damaged: dict[str, object] = {name: [] for name in odd_names}
    assert RankLook(3, "n2", 7, frames=WAIT) == RankLook.from_json({**data, **damaged})
    assert WAIT[:1] == RankLook.from_json({**data, "frames": [list(WAIT[0]), ["a", "b"], "abc"]}).frames
    assert () == RankLook.from_json({**data, "frames": "abc"}).frames


@pytest.mark.parametrize("data", [None, [], {}, {"rank": "x", "node": "n"}, {"node": "n"}])
def test_without_a_rank_it_is_refused(data: object) -> None:
    """Everything else may be missing or odd."""
    with pytest.raises(ValueError, match=r"no rank|invalid literal"):
        RankLook.from_json(data)
    odd_data = {"rank": 1, "node": "n", "frames": [["a"], 3], "step": "x", "stack": 4, "new": 1}
    assert RankLook(1, "n") == RankLook.from_json(odd_data)
