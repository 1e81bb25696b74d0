"""Targets: every reader of a record, and of a name that tells something."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from fuzz_lib.samples import ENTRIES, FACTS
from fuzz_lib.strategies import changed, changed_bytes, fields, with_fields
from fuzz_lib.target import Target, allowed, expect
from hpc_elastic.account import log_marks
from hpc_elastic.account.account import account_of, seconds_of_nodes
from hpc_elastic.account.facts import WorkFact, encode_fact, parse_facts
from hpc_elastic.account.spans import History
from hpc_elastic.agent.rank_assignment import RoleInstanceInfo
from hpc_elastic.errors import DamagedError, RendezvousStateError, StoreError
from hpc_elastic.frameworks.torch import stores
from hpc_elastic.frameworks.torch.memory.node_memory import Began
from hpc_elastic.meet import member_names
from hpc_elastic.multiprocessing.errors import failure
from hpc_elastic.multiprocessing.errors.failure import FailureRecord, failure_summary
from hpc_elastic.node.hangs import activity_rules, slow_rules
from hpc_elastic.node.hangs import look as hang_look
from hpc_elastic.node.setup import hang_times
from hpc_elastic.processes.preload import preloader, rules
from hpc_elastic.record import checkpoints, journal
from hpc_elastic.record.array_task import epoch_now, start_of
from hpc_elastic.record.checkpoint_files import CheckpointFacts
from hpc_elastic.record.journal import Record
from hpc_elastic.record.state import RunState, apply, fold
from hpc_elastic.rendezvous import dynamic_rules as dynamic_state
from hpc_elastic.report.timeline import ending_text, failure_text, timeline
from hpc_elastic.slurm.client.deadlines import Site
from hpc_elastic.slurm.run_jobs.run_files import StoredJob
from hpc_elastic.slurm.run_jobs.submissions import JobRecord
from hpc_elastic.store.kv import versions as kv_format
from hpc_elastic.store.mount import Mount
from hpc_elastic.store.node_events import NodeEvent
from hpc_elastic.timer.file_based_local_timer import FileTimerRequest, parse_request
from hpc_elastic.typed_json import parse, read

_RECORDS = tuple(journal.encode(entry, at=1700000000.5 + n, by="n1") for n, entry in enumerate(ENTRIES))
_BEGUN = [journal.parse(number, data) for number, data in enumerate(_RECORDS, start=1)]
_FACTS = tuple(map(encode_fact, FACTS))
_LOG_MARKS = tuple(
    log_marks.encode_mark(log_marks.LogMark(number, 1700000000.5, 1, 0.25, 2, 77, (5, -1, 0, 3)))
    for number in range(3)
)
_ERROR = json.dumps(failure.encode_reply("ValueError: bad", "Traceback ...", 1700000000.25)).encode()
_FLAT = b'{"message": "text", "timestamp": 1700000000}'
_NODE = dynamic_state.NodeDesc("n1", 7, 0)
_STATE = dynamic_state.encode(
    dynamic_state.DynamicState(
        3,
        complete=True,
        participants={_NODE: dynamic_state.NodePlace(0, 1234)},
        beats={_NODE: 4},
        members=(_NODE,),
    )
)
_KV = kv_format.encode_record(kv_format.nothing_yet(b"key").successor(b"42", deleted=False, writer="5f0c"))
_LOOK = b'{"ranks": [{"rank": 1, "node": "n1", "step": 4, "frames": [["f", "g.py", "3"]], "state": "S"}]}'
_LENGTHS = json.dumps(hang_times.encode({"step": hang_times.Length(1.5, 30)}, (0, 1))).encode()
_MARK = checkpoints.encode_mark(checkpoints.MarkName(12, 1, 0, 2), "/ckpt/12", 2, 0.5)
_TIMER = FileTimerRequest(12, "scope", 12.5, 9).to_json().encode()
_TYPED: tuple[tuple[str, type, bytes], ...] = (
    ("job-record", JobRecord, b'{"token": "hpc_elastic:ab", "job_id": "7", "time": "2026-01-01 00:00:00"}'),
    (
        "job-json",
        StoredJob,
        b'{"format": 1, "spec": {"command": ["train.py"], "nodes": "2:4", "max_restarts": 3}}',
    ),
    ("site", Site, json.dumps(Site(30.0, 60.0)._asdict()).encode()),
    ("mount", Mount, b'["/home", "nfs4", "server:/home", ["rw", "vers=4.2"]]'),
    (
        "node-event",
        NodeEvent,
        b'{"host": "n1", "fault": "unfit", "at": 1.5, "key": "k", "run": "r", "detail": "d"}',
    ),
    (
        "checkpoint-facts",
        CheckpointFacts,
        b'{"step": 12, "world_size": 4, "saved_at": 1700000000.5, "blocked_s": 0.5, "took_s": 1.5}',
    ),
    (
        "began",
        Began,
        b'{"round": 3, "from_round": 2, "from_step": 12, "token": "ab", "recovered": [1, 2]}',
    ),
)


def _bytes_of(good: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    typed = st.builds(with_fields, st.sampled_from(tuple(good)), fields)
    return typed | changed_bytes(good)


def _journal(values: Sequence[bytes]) -> None:
    """Fold and tell what can be read; a record that cannot ends the journal."""
    records: list[Record] = []
    for number, data in enumerate(values, start=1):
        try:
            records.append(journal.parse(number, data))
        except RendezvousStateError as error:
            expect(f"journal record {number} " in str(error), "the error does not name the record")
            break
    state = fold(RunState(), records)
    for moment in timeline(records):
        moment.text.encode("utf-8", "surrogateescape")
    for record in records:
        expect(
            record == journal.parse(record.number, journal.encode(record.entry, at=record.at, by=record.by))
            or record.at != round(record.at, 3),
            "a record is not read as it was written",
        )
        expect(apply(state, record.entry) is not None, "no state")
    _account(records, ())
    if state.ending is not None:
        ending_text(state.ending)
    epoch_now(state, 0)


def _account(records: Sequence[Record], facts: Sequence[WorkFact]) -> None:
    """Account for the time of a run; its buckets add up, whatever the clocks of the writers say."""
    account = account_of(History(records, facts))
    total = sum(account.seconds.values())
    expect(abs(total - account.wall_s) <= 1e-6 * max(1.0, account.wall_s), "the buckets do not add up")
    for seconds in seconds_of_nodes(account.series.spans).values():
        expect(abs(sum(seconds.values()) - total) <= 1e-6 * max(1.0, total), "those of a node do not")


def _facts(data: bytes) -> None:
    """Read the lines of an agent about its rounds, and account for them beside a run that has begun."""
    facts = parse_facts(data)
    for fact in facts:
        again = parse_facts(encode_fact(fact))
        expect(len(again) == 1, "a line is not read as it was written")
    _account(_BEGUN, facts)


def _member_names(names: Sequence[str]) -> None:
    found = [name for name in map(member_names.parse_name, names) if name is not None]
    for name in found:
        expect(member_names.parse_name(name.text()) == name, "a name is not read as it was written")
        start_of(name.node_id)
        epoch = name.epoch
        member_names.absent(member_names.observe({}, names, epoch, 1.0))
        member_names.suspicions_in(names, epoch)
    member_names.newest_record(names, {})
    member_names.outdated(name.node_id for name in found)


def _kv_names(names: Sequence[str]) -> None:
    listing = kv_format.parse_names(names)
    for encoded, version in listing.latest.items():
        listing.older(encoded, version)
        kv_format.decode_key(encoded)


def _marks(names: Sequence[str]) -> None:
    for mark in checkpoints.complete_marks(names):
        expect(checkpoints.parse_name(checkpoints.encode_name(mark)) == mark, "a mark is read otherwise")
    checkpoints.is_half_saved(names, 3)


def _mark(data: bytes) -> None:
    found = checkpoints.parse_mark(data)
    expect(found is None or found.step >= 0, "a step below 0")
    checkpoints.from_env(data.decode("utf-8", "surrogateescape"))


def _log_marks(data: bytes) -> None:
    found = list(log_marks.marks_backwards(data))
    for mark in found:
        again = log_marks.parse_mark(log_marks.encode_mark(mark))
        expect(again is not None and again.sizes == mark.sizes, "a mark of a log is read otherwise")
        log_marks.time_of(mark, {1: 1700000000.0})
    expect(log_marks.marked_rounds(data) >= {mark.round for mark in found}, "a round without its mark")
    log_marks.thinned(data.splitlines(keepends=True))


def _paces(names: Sequence[str]) -> None:
    watch = slow_rules.SlowWatch()
    found = [pace for name in names if (pace := slow_rules.parse_pace(name)) is not None]
    for _ in range(5):
        watch.note(found)


def _activity(names: Sequence[str]) -> None:
    for found in filter(None, map(activity_rules.parse_activity, names)):
        expect(activity_rules.parse_activity(found.text()) == found, "an activity is read otherwise")
        expect(found.older(7).silence_s == found.silence_s + 7, "time makes no silence longer")


def _error_file(data: bytes) -> None:
    reply = failure.parse_reply(data)
    record = {"rank": 0, "node": "n1", "message": reply.message, "traceback": reply.traceback, "exitcode": 1}
    failure_text(record)
    failure_summary("train.py", [FailureRecord.from_json({**record, "timestamp": reply.time_s})])


def _look(data: bytes) -> None:
    for look in hang_look._parse(data):  # noqa: SLF001 - the reader itself
        look.where.encode("utf-8", "surrogatepass")


def _failure(data: bytes) -> None:
    with allowed(DamagedError):
        record = read(dict[str, Any], data)
        failure_text(record)
        failure_summary("train.py", [FailureRecord.from_json(record)])


def _reads(reader: Callable[[bytes], object], *errors: type[BaseException]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        with allowed(*errors):
            reader(data)

    return check


def _typed(name: str, kind: type, good: bytes) -> Target:
    return Target(name, _bytes_of([good]), _reads(lambda data: read(kind, data), DamagedError))


_LESSONS = (
    b'{"format": 1, "modules": [{"name": "numpy", "site": "/opt/dist-packages", "changed": ["A"]}],'
    b' "left_out": {"torch": "it starts threads"}}'
)
_NOTES = b"numpy\t/usr/lib/python3/dist-packages\tA\n-numpy\ntorch\t/opt/site-packages\n"


def _lessons(data: bytes) -> None:
    """Learn what a file of lessons says, and leave some of it out again."""
    with allowed(DamagedError):
        found = read(preloader.Lessons, data)
        fit = [one for one in found.modules if rules.is_fit_to_learn(one)]
        left = found.with_modules(fit).without({one.name: "bad" for one in fit[:1]}, for_good=True)
        expect(all(one.name != fit[0].name for one in left.modules if fit), "a module is kept")


def _notes(data: bytes) -> None:
    """Read the notes of a worker about its imports."""
    for one in rules.noted(data):
        rules.is_fit_to_learn(one)


_MEMBER = "n1.77+0-0-1-0+running+3+12+5"
_NAMES = st.lists(
    changed(
        (_MEMBER, "n2.78@7_1-0-0+0-0-1-0+left+3+12+5", "n1.77+0-0-1-0+suspected+12+by+n2.78", "news+12"),
        ("+", "-", "0", "9" * 30, "running", "suspected", "by", "news+", "²", "@7_1-2-3"),
    ),
    max_size=4,
)
_KEYS = st.lists(
    changed(("a+00000001", "a+deleted", "%2Fa+00000012"), ("+", "%", "%%", "deleted", "9" * 30, "²")),
    max_size=4,
)
_MARKS = st.lists(
    changed(("000000000012.1.0.2.json", "000000000012.1.1.2.json"), (".", "9" * 30, "-1", "0", ".json", "²")),
    max_size=4,
)
_PACES = st.lists(
    changed(
        ("n1+2+7+1500000+1+1100000", "n2+2+7+1500000+2", "n3+2+7+9000000+3"),
        ("+", "0", "9" * 18, "9" * 30, "²"),
    ),
    max_size=4,
)
_ACTIVITIES = st.lists(
    changed(("n1+2+1700000000+3+7+8+1+0+-", "n2.gpu+2+1+0+-+8+-+0+5"), ("+", "-", "9" * 18, "9" * 30, "²")),
    max_size=4,
)
TARGETS: tuple[Target, ...] = (
    Target("journal", st.lists(_bytes_of(_RECORDS), max_size=8), _journal, 100),
    Target("member-names", _NAMES, _member_names),
    Target("kv-names", _KEYS, _kv_names),
    Target(
        "kv-record",
        _bytes_of([_KV]),
        _reads(lambda data: kv_format.decode_record(data, "path", b"key"), StoreError),
    ),
    Target(
        "dynamic-state",
        _bytes_of([_STATE]),
        _reads(lambda data: dynamic_state.parse(data, "b"), RendezvousStateError),
    ),
    Target("checkpoint-names", _MARKS, _marks),
    Target("checkpoint-mark", _bytes_of([_MARK]), _mark),
    Target("account-lines", st.lists(_bytes_of(_FACTS), max_size=8).map(b"\n".join), _facts),
    Target("log-marks", st.lists(_bytes_of(_LOG_MARKS), max_size=8).map(b"".join), _log_marks),
    Target("pace-names", _PACES, _paces),
    Target("activity-names", _ACTIVITIES, _activity),
    Target("error-file", _bytes_of([_ERROR, _FLAT]), _error_file),
    Target("failure", _bytes_of([json.dumps(FailureRecord(1).to_json()).encode()]), _failure),
    Target("lessons", _bytes_of([_LESSONS]), _lessons),
    Target("import-notes", changed_bytes([_NOTES]), _notes),
    Target("hang-look", _bytes_of([_LOOK]), _look),
    Target(
        "hang-times", _bytes_of([_LENGTHS]), _reads(lambda data: hang_times.decode(parse(data)), DamagedError)
    ),
    Target(
        "ranks",
        _bytes_of([RoleInstanceInfo("role", 0, 2).serialize()]),
        _reads(RoleInstanceInfo.deserialize, DamagedError),
    ),
    Target("timer-request", _bytes_of([_TIMER]), _reads(parse_request, ValueError)),
    Target(
        "contact",
        _bytes_of([stores.encoded(stores.Contact(1, "t", "m", "h", ("::1",), only=False)).encode()]),
        _reads(stores.decoded, StoreError),
    ),
    *(_typed(*each) for each in _TYPED),
)
