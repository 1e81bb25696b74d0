"""The message about the end of a run, with a real web server, real commands and a stand-in for Slurm."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.checkpoints import MarkName, write_mark
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Drained,
    Entry,
    Epoch,
    EpochStarted,
    MarkedCheckpoint,
    Note,
    Notified,
    Record,
    Requeued,
    RunEnded,
    RunEvent,
)
from hpc_elastic.record.progress import BEGINNING
from hpc_elastic.record.run_log import read_records
from hpc_elastic.record.state import RunState, fold
from hpc_elastic.slurm.end import notify
from hpc_elastic.slurm.end.send_notice import Sending, send
from hpc_elastic.slurm.job.notice import Message, body, check_events, read_template, read_webhook
from tests.cli.test_finish_command import command
from tests.slurm.stand_in import FakeJob
from tests.slurm.test_finish import EPOCH, ROUND, STARTED, FastClock, job, paths, write
from tests.slurm.webhooks import CERTIFICATE, webhooks

__all__ = ["job", "paths"]

FAILURE = {"rank": 3, "node": "n2", "pid": 12, "exitcode": 1, "message": "ValueError: bad"}
FAILED = RunEnded(Decision.FAILED, 1, "no restarts are left", FAILURE)
MESSAGE = Message(
    event="failed",
    title="toy: failed",
    text="toy is failed: <!channel> & more",
    run="toy",
    run_dir="/runs/toy",
    job_id="7",
    reason="no restarts are left",
    failure="rank 3",
    step=None,
    requeues=2,
    command="hpc-elastic explain /runs/toy",
)


def secret(place: Path, text: str, mode: int = 0o600) -> Path:
    """Return a file that says where messages go."""
    file = place / "webhook"
    file.write_text(text)
    file.chmod(mode)
    return file


def entries(paths: RunPaths, kind: type) -> list[Entry]:
    """Return the records of a kind."""
    return [record.entry for record in read_records(paths) if isinstance(record.entry, kind)]


def test_a_failed_run_is_told_once(paths: RunPaths, job: FakeJob, tmp_path: Path) -> None:
    """With its root cause, by the first script that finds it; the URL is in no record and no log."""
    write(paths, STARTED, ROUND, FAILED)
    write_mark(paths, MarkName(8, 1, 0, 1), "/ckpt/8", 1)
    with webhooks() as hooks:
        file = secret(tmp_path, f"{hooks.url()}\n# a comment\nAuthorization: Bearer 5ecret\n")
        for _ in range(2):
            done = command(paths, job, "--srun-exit-code=1", f"--notify-webhook={file}")
            assert 1 == done.returncode
            assert "5ecret" not in done.stderr
    (came,) = hooks.came
    assert ("failed", "run", paths.root, "7", 8, 0) == tuple(
        came[name] for name in ("event", "run", "run_dir", "job_id", "step", "requeues")
    )
    assert ("no restarts are left", "rank 3 on n2: exit code 1: ValueError: bad") == (
        came["reason"],
        came["failure"],
    )
    assert "Bearer 5ecret" == hooks.headers[0]["Authorization"]
    assert [Notified(EPOCH, RunEvent.FAILED, 3)] == entries(paths, Notified)
    assert not any(b"5ecret" in file.read_bytes() for file in Path(paths.root).rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("fate", "told", "words"),
    [("hold", "held", "scontrol release 7"), ("fail", "failed", "submit --resume")],
)
def test_a_start_that_does_not_begin_is_told(
    paths: RunPaths, job: FakeJob, tmp_path: Path, fate: str, told: str, words: str
) -> None:
    """A budget is spent by ends that the start has found; its log says how to go on, as at any other end."""
    write(paths, STARTED, ROUND, Requeued(EPOCH, Cause.PREEMPTION))
    flags = ("--begins", "--max-preemptions=0", f"--on-budget-spent={fate}")
    done = command(
        paths,
        job,
        *flags,
        f"--notify-command=cat > {tmp_path}/told",
        SLURM_RESTART_COUNT="1",
        PATH=f"{job.bin}:/usr/bin:/bin",
    )
    assert "0\n" == done.stdout
    assert words in done.stderr
    assert told == json.loads((tmp_path / "told").read_text())["event"]
    assert 1 == len(entries(paths, Notified))


def _two_starts_in_vain(paths: RunPaths) -> Epoch:
    """Write two starts that save nothing newer than step 4."""
    again = Epoch(0, 0, 1, 0)
    saved = MarkedCheckpoint(4, "/ckpt/4")
    drained = Drained(EPOCH, Cause.PREEMPTION, 4, "")
    write(paths, STARTED, ROUND._replace(checkpoint=saved), drained, Requeued(EPOCH, Cause.PREEMPTION))
    write(paths, EpochStarted(again, "7", ("n1", "n2")))
    write(paths, ROUND._replace(number=2, epoch=again, checkpoint=saved), drained._replace(epoch=again))
    return again


def test_starts_without_progress_are_told_after_the_requeue(
    paths: RunPaths, job: FakeJob, tmp_path: Path
) -> None:
    """Slurm has the request before the message is sent; a start that is requeued as usual is not told."""
    write(paths, STARTED, ROUND, Drained(EPOCH, Cause.PREEMPTION, 4, ""))
    with webhooks(when_asked=lambda: job.calls) as hooks:
        file = secret(tmp_path, hooks.url())
        assert 75 == command(paths, job, f"--notify-webhook={file}").returncode
        assert [] == hooks.came
    other = RunPaths(tmp_path / "other")
    for directory in other.directories():
        os.makedirs(directory)
    Path(other.identity).write_text('{"format": 1}')
    again = _two_starts_in_vain(other)
    job.set(Restarts="1")
    before = len(job.calls)
    with webhooks(when_asked=lambda: job.calls[before:]) as hooks:
        file = secret(tmp_path, hooks.url())
        done = command(other, job, f"--notify-webhook={file}", SLURM_RESTART_COUNT="1")
        assert 75 == done.returncode
    assert (["no-progress"], [["scontrol requeue 7"]]) == (
        [one["event"] for one in hooks.came],
        hooks.seen,
    )
    assert "2 starts in a row saved nothing newer than step 4" == hooks.came[0]["reason"]
    assert [Notified(again, RunEvent.NO_PROGRESS, 4)] == entries(other, Notified)


def test_a_local_run_that_goes_on_does_not_wait_for_its_message(
    paths: RunPaths, job: FakeJob, tmp_path: Path
) -> None:
    """Its runner starts it again once finish has ended, however long the server takes."""
    _two_starts_in_vain(paths)
    with webhooks(0) as hooks:
        flag = f"--notify-webhook={secret(tmp_path, hooks.url())}"
        done = command(paths, job, flag, HPC_ELASTIC_LOCAL="1", SLURM_NNODES="2", SLURM_RESTART_COUNT="1")
        assert 75 == done.returncode
    assert "not sent" not in done.stderr
    assert 1 == len(entries(paths, Notified))


def test_events_that_are_not_asked_for_are_not_told(paths: RunPaths, job: FakeJob, tmp_path: Path) -> None:
    """Nor those of a user's own wish, such as a cancelled job; another one is claimed by nobody then."""
    write(paths, STARTED, ROUND, FAILED)
    with webhooks() as hooks:
        file = secret(tmp_path, hooks.url())
        command(paths, job, f"--notify-webhook={file}", "--notify-on=done,held")
    assert ([], []) == (hooks.came, entries(paths, Notified))


def test_a_message_that_is_not_taken_is_noted_and_costs_the_job_nothing(
    paths: RunPaths, job: FakeJob, tmp_path: Path
) -> None:
    """The script ends with the code of the run; the batch log and the records name the reason."""
    write(paths, STARTED, ROUND, RunEnded(Decision.DONE, 0, "all workers succeeded", None))
    file = secret(tmp_path, "https://localhost/x", mode=0o640)
    done = command(paths, job, f"--notify-webhook={file}", "--notify-command=exit 127")
    assert 0 == done.returncode
    text = "the message that the run is done was not sent: "
    assert f"{text}the file of the webhook {file} has mode 0640, so other users may" in done.stderr
    (note,) = entries(paths, Note)
    assert isinstance(note, Note)
    assert note.text.startswith(text)
    assert "the command has ended with exit code 127" in note.text


@pytest.mark.parametrize(
    ("answers", "trouble", "tries"),
    [
        ((), "", 1),
        ((500,), "", 2),
        ((429, 503), "", 3),
        ((404,), "the webhook has answered 404 Not Found", 1),
        ((302,), "the webhook has answered 302 Found", 1),
        ((500,) * 9, "the webhook has answered 500 Internal Server Error (4 tries)", 4),
    ],
    ids=["taken", "500 once", "busy", "unknown", "elsewhere", "500 always"],
)
def test_a_webhook_is_tried_again_while_that_may_help(
    tmp_path: Path, answers: tuple[int, ...], trouble: str, tries: int
) -> None:
    """Within the time of the message, with pauses that double; a redirect is not followed."""
    with webhooks(*answers) as hooks:
        file = secret(tmp_path, hooks.url())
        assert trouble == send(Sending('{"a": 1}', 15.0, str(file)), FastClock())
    assert [{"a": 1}] * tries == hooks.came


def test_the_words_of_a_server_act_on_no_terminal(tmp_path: Path) -> None:
    """They stand in the batch log and in the records, as escapes and cut."""
    with webhooks(404) as hooks:
        hooks.reason = "\x1b]0;OWNED\x07" + "x" * 10_000
        said = send(Sending("{}", 4.0, str(secret(tmp_path, hooks.url()))), FastClock())
    assert said.startswith(r"the webhook has answered 404 \x1b]0;OWNED\x07xxx")
    assert 340 > len(said)


def test_a_server_that_hangs_or_refuses_is_given_up(tmp_path: Path) -> None:
    """The time for one answer is limited, and so is that for all tries."""
    with webhooks(0) as hooks:
        file = secret(tmp_path, hooks.url())
        assert "the webhook does not answer: timed out" == send(Sending("{}", 0.2, str(file)), FastClock())
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        file = secret(tmp_path, f"http://127.0.0.1:{free.getsockname()[1]}/")
        said = send(Sending("{}", 4.0, str(file)), FastClock())
    assert "the webhook does not answer: Connection refused (3 tries)" == said


def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody vouches for gets no message; with SSL_CERT_FILE the user does."""
    with webhooks(is_tls=True) as hooks:
        file = secret(tmp_path, hooks.url("https"))
        said = send(Sending("{}", 9.0, str(file)), FastClock())
        assert "the certificate of the webhook is not valid: self-signed certificate" == said
        assert [] == hooks.came
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        assert "" == send(Sending("{}", 9.0, str(file)), FastClock())
    assert [{}] == hooks.came


def test_a_command_is_given_the_message_and_ended_in_time(tmp_path: Path) -> None:
    """With all that it has started; its last line is told."""
    kept = tmp_path / "kept"
    assert "" == send(Sending('{"a": 1}', 5.0, command=f"cat > {kept}"), FastClock())
    assert {"a": 1} == json.loads(kept.read_text())
    said = send(Sending("{}", 2.5, command="echo no route; exit 3"), FastClock())
    assert "the command has ended with exit code 3: no route (2 tries)" == said
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    hangs = f"sleep 600 > {tmp_path}/held & sleep 600"
    assert "the command has not ended in 0.3 s" == send(Sending("{}", 0.3, command=hangs), FastClock())
    os.set_blocking(held, True)
    assert b"" == os.read(held, 1)  # no process has it open for writing
    os.close(held)


def test_a_sender_that_does_not_end_is_killed() -> None:
    """A name server that does not answer cannot be given a time."""
    sender = notify._start({"body": "{}", "total_s": 600.0, "command": "sleep 600"})
    assert "there was no answer in time" == notify._wait(sender, 0.2)
    assert -9 == sender.returncode


def _ended(*after: Entry) -> tuple[list[Record], RunState]:
    records = [Record(number, 0.0, "n1", entry) for number, entry in enumerate((STARTED, ROUND, *after), 1)]
    return records, fold(RunState(), records)


@pytest.mark.parametrize(
    ("decision", "event"),
    [
        (Decision.DONE, RunEvent.DONE),
        (Decision.FAILED, RunEvent.FAILED),
        (Decision.HELD, RunEvent.HELD),
        (Decision.STOPPED, None),
        (Decision.CANCELLED, None),
    ],
)
def test_the_event_follows_from_the_records(decision: Decision, event: RunEvent | None) -> None:
    """Each end that its user has not asked for is one, named by its record."""
    told = notify.event_now(*_ended(RunEnded(decision, 75, "why", None)), BEGINNING, of_starts=True)
    assert (None if event is None else (event, 3, "why")) == told
    assert None is notify.event_now(*_ended(), BEGINNING, of_starts=True)


def test_the_bodies_of_messages(tmp_path: Path) -> None:
    """Slack's marks do nothing in them, a card is whole, and a template of one's own is filled in."""
    assert {"text": "*toy: failed*\ntoy is failed: &lt;!channel&gt; &amp; more"} == json.loads(
        body("slack", MESSAGE)
    )
    (card,) = json.loads(body("teams", MESSAGE))["attachments"]
    assert [MESSAGE.title, MESSAGE.text] == [block["text"] for block in card["content"]["body"]]
    assert {"format": 1, **MESSAGE._asdict()} == json.loads(body("json", MESSAGE))
    own = tmp_path / "own.json"
    own.write_text('{"n": [1, true, "$run: $$ ${requeues} $step"]}')
    assert {"n": [1, True, "toy: $ 2 "]} == json.loads(body(str(own), MESSAGE))


@pytest.mark.parametrize(
    ("text", "words", "fix"),
    [
        ("", "has no URL in its first line", "https://"),
        ("ftp://example.org/x", "has no URL in its first line", "https://"),
        ("https://user:pw@example.org/x", "has no URL in its first line", "https://"),
        ("https://example.org:65536/x", "has no URL in its first line", "https://"),
        ("http://example.org/x", "has a URL with http, which anybody on the way can read", "use https"),
        ("https://example.org/x\nno header", "has no header in its line 2", "NAME: VALUE"),
    ],
)
def test_a_file_without_a_fit_url_is_refused(tmp_path: Path, text: str, words: str, fix: str) -> None:
    """The error has nothing of the content."""
    with pytest.raises(InputError) as caught:
        read_webhook(str(secret(tmp_path, text)))
    assert ("notify_webhook", True, True) == (
        caught.value.where,
        words in caught.value.message,
        fix in caught.value.fix,
    )
    assert not text or text.splitlines()[0] not in str(caught.value)


def test_the_file_of_a_webhook_is_no_link(tmp_path: Path) -> None:
    """Nor is it missing, or a directory."""
    (tmp_path / "link").symlink_to(secret(tmp_path, "https://example.org/x"))
    refused: list[tuple[str, Callable[[str], object]]] = [
        ("link", read_webhook),
        ("none", read_webhook),
        (".", read_webhook),
        ("none", read_template),
    ]
    for name, read in refused:
        with pytest.raises(InputError):
            read(str(tmp_path / name))


def test_a_url_in_place_of_the_file_of_a_webhook_is_named(tmp_path: Path) -> None:
    """Settings are stored where others may read them, and the URL is a secret."""
    with pytest.raises(InputError, match=r"cannot be read.*\n  fix: write the URL into a file that only you"):
        read_webhook(str(tmp_path / "https://example.org/x"))


def test_an_unknown_event_is_refused() -> None:
    """The error lists those that there are."""
    with pytest.raises(InputError, match=r"there is no event 'fail'\n  fix: use some of failed, held, done"):
        check_events(("fail",))
    assert tuple(RunEvent) == check_events(())


def test_a_local_run_that_is_over_waits_for_its_message(paths: RunPaths, job: FakeJob) -> None:
    """Nothing comes after it, so that the reason of a failed message still gets into its log."""
    write(paths, STARTED, ROUND, FAILED)
    done = command(paths, job, "--srun-exit-code=1", "--notify-command=exit 3", HPC_ELASTIC_LOCAL="1")
    assert 1 == done.returncode
    assert "the message that the run is failed was not sent" in done.stderr
