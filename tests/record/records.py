"""Random records of every kind, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from hpc_elastic.record.journal import (
    AfterDrain,
    Answer,
    Asked,
    Budget,
    Cause,
    Decision,
    Drained,
    DrainExplained,
    DrainRequested,
    DrillBegan,
    DrillCalledOff,
    Entry,
    Epoch,
    EpochStarted,
    FailedAlike,
    FailedLeaving,
    HangSuspected,
    MarkedCheckpoint,
    Member,
    NeverAsked,
    NodeLeft,
    NodeSlow,
    NodeTaken,
    NodeUnfit,
    Note,
    Notified,
    RanksStopped,
    Requeued,
    RoundEnded,
    RoundFormed,
    RunEnded,
    RunEvent,
    SetupFailure,
    SizeWanted,
    StopAgreed,
    StopKind,
    TaskStopped,
    Verdict,
    WarningHeld,
    WorkerWord,
)

small = st.integers(0, 3)
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
nodes = st.sampled_from(("n1", "n2", "n3"))
epochs = st.just(Epoch(0, 0, 0, 0)) | st.builds(Epoch, small, small, small, small)  # many fit together
members = st.builds(Member, nodes.map(lambda node: f"{node}.1"), nodes, st.integers(1, 8), text)
causes = st.sampled_from(Cause)
checkpoints = st.none() | st.builds(MarkedCheckpoint, small, st.none() | text)
failures = st.none() | st.dictionaries(text, text | small | st.none(), max_size=3)
rounds = st.integers(1, 4)
budgets = st.none() | st.sampled_from(Budget)
asked = st.builds(Asked, text, st.none() | st.sampled_from(Answer), text)
words = st.none() | st.builds(WorkerWord, st.sampled_from(Verdict), small, nodes, text)
failed_lines = st.none() | st.builds(SetupFailure, text, text, st.none() | small, text, st.booleans())

entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        EpochStarted,
        epochs,
        text,
        st.lists(nodes, max_size=3).map(tuple),
        st.just("") | nodes,
        st.sampled_from(("", "2:4")),
    ),
    st.builds(
        RoundFormed,
        rounds,
        epochs,
        st.lists(members, min_size=1, max_size=3, unique_by=lambda m: m.node).map(tuple),
        text,
        st.integers(1, 65_535),
        checkpoints,
        st.lists(nodes, max_size=2).map(tuple),
    ),
    st.builds(
        RoundEnded, rounds, causes, st.lists(nodes, max_size=2).map(tuple), failures, st.none() | small, words
    ),
    st.builds(
        DrainRequested,
        causes,
        nodes,
        st.sampled_from(AfterDrain),
        text,
        st.none() | epochs,
        st.none() | st.floats(0, 1e6),
        asked,
        budgets,
    ),
    st.builds(DrainExplained, epochs, causes, text, st.none() | st.floats(0, 1e6), st.sampled_from(Answer)),
    st.builds(StopAgreed, rounds, st.integers(-1, 100)),
    st.builds(
        Drained,
        epochs,
        causes,
        st.none() | small,
        text,
        st.none() | st.floats(0, 1e6),
        asked,
        st.lists(nodes, max_size=2).map(tuple),
        budgets,
    ),
    st.builds(
        RunEnded,
        st.sampled_from(Decision),
        st.integers(0, 255),
        text,
        failures,
        st.none() | epochs,
        budgets,
    ),
    st.builds(Requeued, epochs, causes, text, failed_lines, text, st.lists(nodes, max_size=2).map(tuple)),
    st.builds(NodeLeft, epochs, text, nodes, causes, text, asked),
    st.builds(TaskStopped, epochs, st.sampled_from(StopKind), text, small, nodes, text),
    st.builds(NodeUnfit, epochs, nodes, text),
    st.builds(SizeWanted, small, st.integers(1, 8), text, st.none() | small, st.none() | small),
    st.builds(HangSuspected, rounds, st.integers(1, 9), nodes, text),
    st.builds(NeverAsked, rounds, runs_on_s=st.none() | st.floats(0, 1e6)),
    st.builds(RanksStopped, rounds, nodes, st.lists(small, max_size=3).map(tuple)),
    st.builds(WarningHeld, rounds, nodes, st.floats(0, 1e6), st.floats(0, 1e6)),
    st.builds(
        NodeSlow, rounds, nodes, small, st.floats(0, 1e6), st.floats(0, 1e6), st.none() | st.floats(0, 1e6)
    ),
    st.builds(NodeTaken, epochs, nodes, text, small),
    st.builds(FailedLeaving, epochs, rounds, nodes, st.just({"rank": 1, "exitcode": 3})),
    st.builds(FailedAlike, epochs, rounds, nodes),
    st.builds(DrillBegan, epochs, text, st.just("") | nodes, text),
    st.builds(DrillCalledOff, epochs, text, text),
    st.builds(Notified, epochs, st.sampled_from(RunEvent), st.integers(-1, 100)),
    st.builds(Note, epochs, text),
)
