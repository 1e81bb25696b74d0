"""The report of a run as text, Markdown, JSON and HTML."""

from __future__ import annotations

import json
import os
import re
import time
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from hpc_elastic.account.gpus import GpuSample, NodeGpus, encode_gpus, noted
from hpc_elastic.account.read import gpu_file
from hpc_elastic.cli import app
from hpc_elastic.clock import date_text, wall_of
from hpc_elastic.paths import RunPaths
from hpc_elastic.record.journal import (
    Cause,
    Decision,
    Entry,
    EpochStarted,
    MarkedCheckpoint,
    Member,
    RoundEnded,
    RoundFormed,
    RunEnded,
)
from hpc_elastic.report.explain.facts import explanation_of
from hpc_elastic.report.explain.head import HeadFacts, figures_of
from hpc_elastic.report.run_facts import look_at
from hpc_elastic.report.run_status import RunPhase
from hpc_elastic.report.timeline import span_text
from hpc_elastic.slurm.run_jobs.run_files import SavedCheckpoint, SlurmAnswer, read_run
from tests.cli.recorded_runs import BEGAN, EPOCH, MEMBERS, NAN, STARTED, paths, write, write_facts

__all__ = ["paths"]

MANY = tuple(f"n{number}" for number in range(512))
HOSTILE = {"rank": 3, "node": "n2", "exitcode": 1, "message": "<script>alert(1)</script>\x1b[2J|a"}


def crashed(failure: dict[str, object]) -> list[tuple[float, Entry]]:
    """Return the records of a run that has crashed twice."""
    return [
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (150.0, RoundEnded(1, Cause.CRASH, ("n2",), failure, 10)),
        (160.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, MarkedCheckpoint(10, None))),
        (300.0, RoundEnded(2, Cause.CRASH, ("n2",), failure, 10)),
        (301.0, RunEnded(Decision.FAILED, 1, "no restarts are left", failure)),
    ]


def reported(paths: RunPaths, capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what the command prints."""
    assert 0 == app.run(["report", paths.root, *words])
    return capfd.readouterr().out


def test_the_use_of_gpus_is_in_every_report(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """A row for each GPU, the least busy one first; status and explain have it in a line."""
    write(paths, *crashed(NAN))
    os.mkdir(paths.gpus, 0o700)
    for node, busy in (("n1", 90), ("n2", 20)):
        samples = [GpuSample("0", f"GPU-{node}", busy, 40 << 30, 80 << 30)]
        Path(gpu_file(paths, node)).write_bytes(encode_gpus(noted(NodeGpus(node, 0.0), samples, 1.0)))
        Path(gpu_file(paths, node)).chmod(0o600)
    text = reported(paths, capfd)
    line = "busy 55 % (least: GPU 0 of n2, 20 %), memory up to 40G of 80G; 2 GPUs on n1, n2"
    assert line in " ".join(text.split())
    rows = [row.split() for row in text.splitlines() if row.endswith(" 1") and "80G" in row]
    assert [["n2", "0", "20", "%", "40G", "80G", "1"], ["n1", "0", "90", "%", "40G", "80G", "1"]] == rows
    found = json.loads(reported(paths, capfd, "--format", "json"))["account"]["gpus"]
    assert [("n2", 0.2), ("n1", 0.9)] == [(gpu["node"], gpu["share"]) for gpu in found]
    for command in ("status", "explain"):
        app.run([command, paths.root])
        assert line in " ".join(capfd.readouterr().out.split())


class Page(HTMLParser):
    """What a browser would find in a page: its tags, what it would load, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in {"src", "href", "onload"}]
        if tag not in {"meta", "i", "input", "br", "line", "polyline"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Note that a tag is closed, which has to be the newest one."""
        if tag not in {"i", "line", "polyline"}:
            assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.words.append(data)


def test_the_page_stands_alone(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """It loads nothing, runs nothing, closes each tag, and shows figures, drawings, tables and the spec."""
    write(paths, *crashed(NAN))
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 170.0, 4, 11), (2, 290.0, 4, 41))
    page = Page(reported(paths, capfd, "--format", "html"))
    assert ([], []) == (page.open, page.loads)
    assert "script" not in page.tags
    text = " ".join(page.words)
    assert 5 == page.tags.count("svg")  # lines over all, nodes, steps, rate, stops
    for title in (
        "Where the time went",
        "Starts of the job",
        "Over time",
        "computing again 13 %",
        "job.json",
    ):
        assert title in text


def head_of(page: str) -> str:
    """Return the text of the head of a page."""
    return " ".join(" ".join(Page(page).words).partition("Account of time")[0].split()).replace("\u202f", " ")


def test_the_head_answers_first(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """State, figures, the reason and the command are above all drawings."""
    write(paths, *crashed(NAN))
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 170.0, 4, 11), (2, 290.0, 4, 41))
    page = reported(paths, capfd, "--format", "html")
    assert '<h1>toy <span class="badge red">failed</span></h1>' in page
    head = head_of(page)
    for told in (
        "step 41 of how many is not told",
        "goodput 15 % 15.0 % cost most: lost at the end 45 %, starting workers 13 %",
        "took 5 min 1 s 1 start",
        "stops 2 ",
        "Failed: no restarts are left",
        "To do:",
    ):
        assert told in head
    assert f"<code>hpc-elastic logs {paths.root}</code>" in page


def test_a_run_that_goes_on_tells_when_it_is_done(paths: RunPaths) -> None:
    """Its figures are the step of all steps, rate, time left, goodput, checkpoint, nodes and stops."""
    write(paths, (0.0, STARTED), (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)))
    write_facts(paths, (1, 40.0, 2, 1), (1, 190.0, 2, 301), total=1000)
    run = read_run(paths)
    seen = look_at(run, print, SlurmAnswer(None, {}))
    moment = HeadFacts(BEGAN + 190, SavedCheckpoint(200, None, 61.0), "0 of 3 restarts")
    found = {one.name: one for one in figures_of(seen, explanation_of(run, seen.account), moment)}
    assert ("301 of 1000", "30 %", 0.301) == found["step"][1:]
    assert ("2 steps/s", "over 2 min 30 s, with its stops") == found["rate"][1:3]
    done = f"done about {date_text(BEGAN + 190 + 349.5)} at this rate"
    assert (span_text(349.5), done) == found["time left"][1:3]
    assert ("1 min 1 s ago", "step 200") == found["last checkpoint"][1:3]
    assert ("2 of 2", "4 workers") == found["nodes"][1:3]
    assert ("0", "0 of 3 restarts") == found["stops"][1:3]
    gone = seen._replace(where=seen.where._replace(phase=RunPhase.GONE))
    left = {one.name: one for one in figures_of(gone, explanation_of(run, seen.account), moment)}["time left"]
    assert (span_text(349.5), "at this rate, if it runs") == left[1:3]  # nobody knows when it starts again


def test_a_run_that_waits_has_a_page(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Before its first record the head says why it waits, and nothing is drawn."""
    page = reported(paths, capfd, "--format", "html")
    assert '<span class="badge yellow">queued</span>' in page
    assert "Queued, waits for its time (Slurm&#x27;s reason: BeginTime)." in page
    assert '<dt>step</dt><dd class="value">?</dd>' in page
    assert [] == Page(page).open


def test_a_stop_shows_the_end_of_its_log(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Its last lines are folded below a link to the file from the place of the page, without secrets."""
    write(paths, *crashed(NAN))
    log = Path(paths.attempt_logs(2)) / "3" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("line\n" * 50 + "MY_API_KEY=abcdef123456\nof-the-job <b>\n")
    job = {"format": 1, "spec": {"name": "toy", "env": {"PLAIN": "of-the-job"}}}
    Path(paths.job).write_text(json.dumps(job))
    reported(paths, capfd, "-o", "run.html")
    page = Path("run.html").read_text()
    name = Path(paths.root).name
    assert f'<a href="{name}/logs/attempt_2/3/stderr.log">logs/attempt_2/3/stderr.log</a>' in page
    assert "<pre>" + "line\n" * 18 + "MY_API_KEY=***\n*** &lt;b&gt;</pre>" in page


def test_a_cut_of_a_log_shows_no_half_secret(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """A secret that begins above the lines which are shown, or above the bytes which are read, is hidden."""
    write(paths, *crashed(NAN))
    log = Path(paths.attempt_logs(2)) / "3" / "stderr.log"
    log.parent.mkdir(parents=True)
    label = "PRIVATE KEY-----"
    log.write_text(f"-----BEGIN {label}\n" + "of-the-key\n" * 30 + f"-----END {label}\nboom\n")
    page = reported(paths, capfd, "--format", "html")
    assert "of-the-key" not in page
    assert "<pre>***\nboom</pre>" in page
    end = "\nboom\n"
    log.write_text("token=" + "a1" * 100 + "x" * (16384 - 100 - len(end)) + end)
    assert "<pre>boom</pre>" in reported(paths, capfd, "--format", "html")


def test_a_log_that_is_a_link_is_not_on_the_page(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whoever can write to the run directory could have a private file of the reader sent around."""
    write(paths, *crashed(NAN))
    (tmp_path / "private").write_text("of nobody else")
    log = Path(paths.attempt_logs(2)) / "3" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.symlink_to(tmp_path / "private")
    page = reported(paths, capfd, "--format", "html")
    assert "of nobody else" not in page
    assert "<pre>it cannot be read: " in page


def test_no_step_is_drawn_during_a_stop(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The line of steps is flat from the last step of a round to the first new one of the next."""
    write(paths, *crashed(NAN)[:4], (301.0, RunEnded(Decision.DONE, 0, "all workers succeeded", None)))
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 200.0, 4, 31), (2, 290.0, 4, 41))
    page = reported(paths, capfd, "--format", "html")
    (line,) = re.findall(r'class="steps" points="([^"]+)"', page)
    places = [tuple(map(float, point.split(","))) for point in line.split()]
    first, stop, flat, rise, last, *_ = places
    assert stop[1] == flat[1] > rise[1] > last[1]
    assert flat[0] == rise[0]
    assert [40, 140, 200, 290] == [round(x * 0.301) for x, _ in (first, stop, flat, last)]


def test_no_step_is_drawn_during_a_stop_of_a_long_run(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """A line of many steps leaves out points, but no end of a stop."""
    first = [(1, 40.0 + step, 2, step) for step in range(1, 1201)]
    then = [(2, 3000.0 + step, 4, 1200 + step) for step in range(1, 1201)]
    over = RunEnded(Decision.DONE, 0, "all workers succeeded", None)
    write(
        paths,
        (0.0, STARTED),
        (10.0, RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)),
        (1250.0, RoundEnded(1, Cause.CRASH, ("n2",), NAN, 1200)),
        (1260.0, RoundFormed(2, EPOCH, MEMBERS, "n1", 1, MarkedCheckpoint(1200, None))),
        (4300.0, over),
    )
    write_facts(paths, *first, *then)
    page = reported(paths, capfd, "--format", "html")
    (line,) = re.findall(r'class="steps" points="([^"]+)"', page)
    places = [tuple(map(float, point.split(","))) for point in line.split()]
    assert len(places) < 3200
    in_stop = [y for (x, y), (following, _) in pairwise(places) if x < 1000 * 2900 / 4300 < following]
    assert in_stop == [min(y for x, y in places if x < 1000 * 2000 / 4300)]
    assert in_stop[0] == next(y for x, y in places if x > 1000 * 2900 / 4300)


def test_days_begin_at_midnight_though_summer_time_ends(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks of days are at local midnight on both sides of the night in which clocks are set back."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M11.3.5/3")  # summer time ends on 20 November 2026
    try:
        time.tzset()
        over = RunEnded(Decision.DONE, 0, "all workers succeeded", None)
        formed = RoundFormed(1, EPOCH, MEMBERS, "n1", 1, None)
        write(paths, (0.0, STARTED), (10.0, formed), (432000.0, over))
        page = reported(paths, capfd, "--format", "html")
        days = dict(re.findall(r'left:([\d.]+)%">(11-\d\d)<', page))
        midnights = {day: wall_of(f"2026-{day}T00:00:00") or 0.0 for day in days.values()}
    finally:
        monkeypatch.undo()
        time.tzset()
    assert ["11-19", "11-20", "11-21", "11-22", "11-23"] == list(days.values())
    assert [f"{(midnights[day] - BEGAN) / 4320:.2f}" for day in days.values()] == list(days)
    assert "local time (UTC+02:00 to UTC+01:00)" in page


def test_numbers_are_right_aligned_with_their_units(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    """A thin space that breaks no line parts a number from its unit."""
    write(paths, *crashed(NAN))
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 170.0, 4, 11), (2, 290.0, 4, 41))
    page = reported(paths, capfd, "--format", "html")
    assert "<td>computing again</td><td class=n>40\u202fs</td><td class=n>13\u202f%</td>" in page


def test_foreign_words_do_nothing_on_the_page(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Markup and control characters in an error are shown, not obeyed, in each format."""
    write(paths, *crashed(HOSTILE))
    page = reported(paths, capfd, "--format", "html")
    assert "script" not in Page(page).tags
    for text in (page, reported(paths, capfd), reported(paths, capfd, "--format", "md")):
        assert "\x1b" not in text


def test_a_page_of_512_nodes_is_small(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Nodes with the same history share a row, so a page of 512 nodes has a few rows and less than 100 KB."""
    members = tuple(Member(f"{name}.1", name, 8) for name in MANY)
    entries: list[tuple[float, Entry]] = [(0.0, EpochStarted(EPOCH, "7", MANY))]
    for number in range(1, 31):
        crew = members if number % 2 else members[:-1]
        entries.append((1000.0 * number, RoundFormed(number, EPOCH, crew, "n0", 1, None)))
        entries.append((1000.0 * number + 900, RoundEnded(number, Cause.CRASH, ("n1",), NAN)))
    write(paths, *entries)
    page = reported(paths, capfd, "--format", "html")
    assert len(page) < 100_000
    assert "n0 and 510 more" in page
    assert ">n511</span>" in page


def test_a_page_of_many_histories_is_small(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """As each node has left once, each has a history of its own: 48 are drawn, and the others are counted."""
    names = MANY[:100]
    members = tuple(Member(f"{name}.1", name, 8) for name in names)
    entries: list[tuple[float, Entry]] = [(0.0, EpochStarted(EPOCH, "7", names))]
    for number in range(1, 201):
        crew = tuple(member for member in members if member != members[number % 100])
        entries.append((1000.0 * number, RoundFormed(number, EPOCH, crew, crew[0].node, 1, None)))
        entries.append((1000.0 * number + 900, RoundEnded(number, Cause.CRASH, ("n1",), NAN)))
    write(paths, *entries)
    page = reported(paths, capfd, "--format", "html")
    assert len(page) < 2_000_000
    assert page.count('<div class="lane">') == 48 + 1  # and that of the stops
    assert "and 52 nodes more with other histories" in page


def test_text_and_markdown_have_the_same_tables(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Each row of a table of the text is a row of the Markdown."""
    write(paths, *crashed(NAN))
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 170.0, 4, 11), (2, 290.0, 4, 41))
    text, markdown = reported(paths, capfd), reported(paths, capfd, "--format", "md")
    assert "\nWhere the time went:\n  bucket " in text
    assert "\n## Where the time went\n\n| bucket | time | share |\n|---|---|---|\n" in markdown
    assert "| computing again | 40 s | 13 % |" in markdown
    rows = [line.split() for line in text.splitlines()]
    assert ["computing", "again", "40", "s", "13", "%"] in rows


def test_the_document_has_nodes_and_spans(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The spans of the JSON add up to the wall time, and so do the seconds of each node."""
    write(paths, *crashed(NAN))
    write_facts(paths, (1, 40.0, 2, 1), (1, 140.0, 2, 21), (2, 170.0, 4, 11), (2, 290.0, 4, 41))
    found = json.loads(reported(paths, capfd, "--format", "json"))
    wall_s = found["account"]["wall_s"]
    assert (1, "report", 301.0) == (found["format"], found["kind"], wall_s)
    assert pytest.approx(wall_s) == sum(span_s for _, span_s, _ in found["spans"])
    assert {"n1", "n2"} == set(found["nodes"])
    assert all(pytest.approx(wall_s) == sum(seconds.values()) for seconds in found["nodes"].values())


def test_the_suffix_of_a_file_names_its_format(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With -o the page is written to a file, which a line says."""
    write(paths, *crashed(NAN))
    file = tmp_path / "run.html"
    assert f"written: {file}\n" == reported(paths, capfd, "-o", str(file))
    assert file.read_text().startswith("<!DOCTYPE html>")


def test_an_unknown_suffix_is_refused(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A file whose suffix names no format is not written; with --format its suffix does not count."""
    file = tmp_path / "run.pdf"
    assert 2 == app.run(["report", paths.root, "-o", str(file)])
    error = capfd.readouterr().err
    assert f".pdf names no format of a report: {file}" in error
    assert "or give --format: one of text, md, json, html" in error
    assert not file.exists()
    reported(paths, capfd, "-o", str(file), "--format", "md")
    assert file.read_text().startswith("# toy")


def test_the_text_fits_a_terminal(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """Each table of the text has 80 columns; an error of one line is wrapped, a path is whole."""
    message = "RuntimeError: CUDA error: an illegal memory access was encountered in the backward pass"
    write(paths, *crashed({**NAN, "message": message, "log": "x"}))
    log = Path(paths.attempt_logs(2)) / "3" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("boom")
    lines = reported(paths, capfd).splitlines()
    assert [] == [line for line in lines if len(line) > 80 and paths.root not in line]
    assert "    log: logs/attempt_2/3/stderr.log" in lines


def test_an_unknown_format_is_refused(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """The error names the formats that there are."""
    assert 2 == app.run(["report", paths.root, "--format", "pdf"])
    assert "write 'text', 'md', 'json' or 'html'" in capfd.readouterr().err
    assert not os.path.exists("run.pdf")


@pytest.mark.parametrize("name", ["", ".", "nowhere/run.html"])
def test_a_file_that_cannot_be_written_is_named(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """The error has the option, the value, the reason and what to do."""
    write(paths, *crashed(HOSTILE))
    assert 2 == app.run(["report", paths.root, "-o", name])
    error = capfd.readouterr().err
    assert error.startswith(f"error: --output: {name!r} cannot be written: ")
    assert "fix: name a file in a directory that is there" in error


@pytest.mark.timeout(120)
def test_a_pipe_that_nobody_reads_is_not_waited_for(
    paths: RunPaths, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Somebody else may have made it in a shared directory."""
    write(paths, *crashed(HOSTILE))
    os.mkfifo(tmp_path / "run.html")
    assert 2 == app.run(["report", paths.root, "-o", str(tmp_path / "run.html")])
    assert "cannot be written: No such device or address" in capfd.readouterr().err


def test_a_dash_is_standard_output(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """With a format of its own, text by default; no file is made."""
    write(paths, *crashed(NAN))
    assert reported(paths, capfd) == reported(paths, capfd, "-o", "-")
    assert "report" == json.loads(reported(paths, capfd, "-o", "-", "--format", "json"))["kind"]
    assert not os.path.exists("-")


def test_a_suffix_without_a_name_is_refused(paths: RunPaths, capfd: pytest.CaptureFixture[str]) -> None:
    """A hidden file of that name would be taken for text."""
    write(paths, *crashed(NAN))
    assert 2 == app.run(["report", paths.root, "-o", ".html"])
    error = capfd.readouterr().err
    assert "--output: .html is a suffix without a name" in error
    assert "give the file a name: run.html" in error
    assert not os.path.exists(".html")
