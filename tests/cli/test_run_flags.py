"""The flags of ``hpc-elastic run``: spellings, defaults, variables, abbreviations, help and errors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli.run.command import main
from hpc_elastic.cli.run.flags import parser, torchs_parser
from hpc_elastic.settings.values import texts

SPELLED = [
    ("--nnodes", "1:4", "1:4"),
    ("--nproc-per-node", "auto", "auto"),
    ("--rdzv-backend", "c10d", "c10d"),
    ("--rdzv-endpoint", "n1:29400", "n1:29400"),
    ("--rdzv-id", "7", "7"),
    ("--rdzv-conf", "join_timeout=5", "join_timeout=5"),
    ("--max-restarts", "3", 3),
    ("--monitor-interval", "5", 5.0),
    ("--start-method", "fork", "fork"),
    ("--event-log-handler", "console", "console"),
    ("--role", "trainer", "trainer"),
    ("--log-dir", "logs", "logs"),
    ("--redirects", "0:1,1:2", "0:1,1:2"),
    ("--tee", "3", "3"),
    ("--local-ranks-filter", "0,1", "0,1"),
    ("--duplicate-stdout-filters", "a,,b,c", ("a,b", "c")),
    ("--duplicate-stderr-filters", "x", ("x",)),
    ("--node-rank", "1", 1),
    ("--master-addr", "n1", "n1"),
    ("--master-port", "29500", 29500),
    ("--local-addr", "10.0.0.1", "10.0.0.1"),
    ("--logs-specs", "mine", "mine"),
    ("--numa-binding", "node", "node"),
    ("--signals-to-handle", "SIGTERM", "SIGTERM"),
    ("--shutdown-timeout", "5", 5.0),
    ("--run-dir", "run", "run"),
    ("--lease", "6", 6.0),
]
ENDING = "--print-completion"  # prints something and ends; tests/cli/test_completion.py
SWITCHES = ["--standalone", "--module", "--no-python", "--run-path", "--virtual-local-rank"]


def dest_of(flag: str) -> str:
    """Return the name of a flag's value."""
    return flag.lstrip("-").replace("-", "_")


def parse(*words: str) -> dict[str, Any]:
    """Return the values of a line."""
    return vars(parser().parse_args([*words, "train.py"]))


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800.0), ("1h30m", 5400.0), ("90", 90.0), ("0.5", 0.5)]
)
def test_a_time_may_have_a_unit(text: str, seconds: float) -> None:
    """As in a job file."""
    assert seconds == parse("--silence-timeout", text)["silence_timeout"]


@pytest.mark.parametrize(("flag", "text", "value"), SPELLED, ids=[flag for flag, _, _ in SPELLED])
def test_a_flag_is_written_with_dashes_underscores_or_in_the_environment(
    flag: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is written goes before the variable."""
    dest = dest_of(flag)
    assert value == parse(flag, text)[dest]
    assert value == parse(f"--{dest}={text}")[dest]
    monkeypatch.setenv(f"PET_{dest.upper()}", text)
    assert value == parse()[dest]
    monkeypatch.setenv(f"PET_{dest.upper()}", "99")
    assert value == parse(flag, text)[dest]


@pytest.mark.parametrize("flag", SWITCHES)
def test_a_switch_is_written_with_dashes_underscores_or_in_the_environment(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 sets it, 0 does not."""
    dest = dest_of(flag)
    assert not parse()[dest]
    assert parse(flag)[dest]
    assert parse(f"--{dest}")[dest]
    monkeypatch.setenv(f"PET_{dest.upper()}", "1")
    assert parse()[dest]
    monkeypatch.setenv(f"PET_{dest.upper()}", "0")
    assert not parse()[dest]
    assert parse(flag)[dest]


def test_every_flag_of_torchrun_is_tested_here() -> None:
    """The table above has all of them, in both spellings."""
    known = {flag for flag in parser().torchs if flag.startswith("--") and "_" not in flag}
    assert known <= {flag for flag, _, _ in SPELLED} | {*SWITCHES, ENDING}


@pytest.mark.parametrize(
    ("words", "dest", "value"),
    [
        (["-m"], "module", True),
        (["-r3"], "redirects", "3"),
        (["-t", "1"], "tee", "1"),
        (["--redirect=3"], "redirects", "3"),
        (["--nproc", "2"], "nproc_per_node", "2"),
        (["--run"], "run_path", True),
        (["--log-d", "x"], "log_dir", "x"),
        (["--max_r=2"], "max_restarts", 2),
        (["--run-d", "x"], "run_dir", "x"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_abbreviations(words: list[str], dest: str, value: object) -> None:
    """What is clear among torchrun's flags is clear here."""
    assert value == parse(*words)[dest]


def test_an_abbreviation_that_is_not_clear(capsys: pytest.CaptureFixture[str]) -> None:
    """It names what it could be."""
    with pytest.raises(SystemExit) as ended:
        parse("--rdzv", "x")
    assert 2 == ended.value.code
    assert capsys.readouterr().err.startswith("error: ambiguous option: --rdzv could match --rdzv")


@pytest.mark.parametrize(
    ("words", "script", "rest"),
    [
        (["a.py", "--nnodes", "2", "-m"], "a.py", ["--nnodes", "2", "-m"]),
        (["--", "a.py", "-x"], "a.py", ["-x"]),
        (["a.py", "-x", "--", "-y"], "a.py", ["-x", "--", "-y"]),
    ],
    ids=["flags", "before", "after"],
)
def test_what_follows_the_script_is_its_own(words: list[str], script: str, rest: list[str]) -> None:
    """Also what looks like a flag of ours."""
    args = parser().parse_args(["--max-restarts=2", *words])
    assert (script, rest) == (args.training_script, args.training_script_args)


def test_others_can_add_flags_to_the_parser() -> None:
    """As programs do that are built on torch.distributed.run."""
    made = torchs_parser()
    made.add_argument("--use-env", action="store_true")
    assert made.parse_args(["--use-env", "a.py"]).use_env


def test_a_list_with_commas() -> None:
    """Two of them are one in a text; empty texts are left out."""
    assert ("a,b", "c") == texts("a,,b,c,")
    assert () == texts("")


def _help() -> str:
    return parser().format_help()


def test_help_names_every_flag_and_what_holds_if_it_is_not_given() -> None:
    """Flags that take a value tell their default; each is shown in one spelling."""
    for action in parser()._actions:
        if action.help is argparse.SUPPRESS:
            continue
        assert action.help
        if action.option_strings and action.nargs != 0 and ENDING not in action.option_strings:
            assert "default" in action.help, action.option_strings
    assert "--nproc_per_node" not in _help()
    assert "--nproc-per-node N|auto|gpu|cpu" in _help()


def test_help_tells_true_defaults() -> None:
    """Those that are fixed numbers or names stand in the text as they are."""
    for action in parser()._actions:
        if action.default not in (None, "", False, argparse.SUPPRESS, ()) and action.option_strings:
            text = f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
            text = ",".join(action.default) if isinstance(action.default, tuple) else text
            assert f"default: {text}" in (action.help or ""), action.option_strings


def test_help_fits_a_narrow_page() -> None:
    """No line is longer than 100 columns where the terminal does not tell."""
    assert max(len(line) for line in _help().splitlines()) <= 100


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodes", "two"], "--nnodes: 'two' is not a node count\n  fix: write N, or MIN:MAX"),
        (["--nnodes", "3:2"], "--nnodes: '3:2' asks for at least 3 and at most 2 nodes\n  fix: the smaller"),
        (["--nnodes", "0"], "--nnodes: '0' asks for 0 nodes\n  fix: ask for at least one node"),
        (["--nproc-per-node", "0"], "--nproc-per-node: '0' is not a number of workers\n  fix: use N (1 or"),
        (["--nproc-per-node", "xpu"], "--nproc-per-node: 'xpu' is not a number of workers\n  fix: write how"),
        (["--nproc-per-node", "many!"], "--nproc-per-node: 'many!' is not a number of workers\n  fix: use N"),
        (["--rdzv-backend", "zeus"], "--rdzv-backend: unknown rendezvous backend 'zeus'\n  fix: use one of"),
        (["--rdzv-conf", "join_timeout"], "--rdzv-conf: The rendezvous configuration option 'join_timeout'"),
        (
            ["--rdzv-conf", "join_timeuot=3"],
            "--rdzv-conf: 'join_timeuot' is not an option of the rendezvous; did you mean join_timeout?",
        ),
        (["--rdzv-conf", "join_timeout=soon"], "--rdzv-conf: The rendezvous configuration option 'join_"),
        (
            ["--join-timeout", "-1"],
            "--join-timeout: '-1' is not a duration\n  fix: write seconds",
        ),
        (["--lease", "1"], "--lease: a lease of 1 s with a heartbeat each 1 s gives healthy nodes up"),
        (
            ["--heartbeat-interval", "inf"],
            "--heartbeat-interval: 'inf' is not a duration\n  fix: write seconds (90)",
        ),
        (
            ["--container", "'x"],
            '--container: "\'x" is not a command: No closing quotation\n  fix: ',
        ),
        (
            ["--rdzv-backend=shared_fs", "--rdzv-endpoint=file:///x"],
            "--rdzv-endpoint: 'file:///x' is no directory\n",
        ),
        (["--max-restarts", "-1"], "--max-restarts: '-1' is less than 0\n  fix: write 0 or more"),
        (["--max-restarts", "x"], "--max-restarts: 'x' is not a whole number\n  fix: write a number without"),
        (
            ["--stop-timeout", "soon"],
            "--stop-timeout: 'soon' is not a duration\n  fix: write seconds (90)",
        ),
        (["--monitor-interval", "0"], "--monitor-interval: '0' leaves no time\n  fix: write more than 0"),
        (
            ["--start-method", "thread"],
            "--start-method: 'thread' cannot be used\n  fix: write 'spawn',",
        ),
        (["--event-log-handler", "nix"], "--event-log-handler: no event handler is registered for 'nix'"),
        (["-r", "4"], "--redirects: '4' names no streams\n  fix: write 0 (none)"),
        (["-t", "0:9"], "--tee: '0:9' names no streams\n  fix: write 0 (none)"),
        (
            ["--local-ranks-filter", "a"],
            "--local-ranks-filter: 'a' is not a list of local ranks\n  fix: write numbers",
        ),
        (["--node-rank", "-1"], "--node-rank: it is -1\n  fix: count the nodes from 0"),
        (["--master-port", "99999"], "--master-port: 99999 is no port\n  fix: give 1 to 65535"),
        (["--logs-specs", "nix"], "--logs-specs: Could not find entrypoint under 'torchrun.logs_specs[nix]'"),
        (["--numa-binding", "near"], "--numa-binding: 'near' cannot be used\n  fix: write 'node', 'socket',"),
        (["--signals-to-handle", "SIGFOO"], "--signals-to-handle: 'SIGFOO' is not a signal that can be"),
        (["--signals-to-handle", "SIGKILL"], "--signals-to-handle: 'SIGKILL' is not a signal that can be"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout: '-1' is not a duration\n  fix: write seconds"),
        (["--no-python", "-m"], "hpc-elastic run: --no-python and --module exclude each other\n  fix: leave"),
        (["--run-path", "-m"], "hpc-elastic run: --run-path and --module exclude each other\n"),
        (["--log-dir", "train.py"], "--log-dir: train.py is no directory\n  fix: give a directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_value_is_refused_before_anything_is_started(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One block names flag, value and fix; exit code 2; no run directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    code: object
    try:
        code = main([*words, "train.py"])
    except SystemExit as stop:
        code = stop.code
    assert 2 == code
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {said}")
    assert "\n  fix: " in shown
    assert [tmp_path / "train.py"] == list(tmp_path.iterdir())


def test_a_variable_that_a_flag_wins_over_is_not_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wrong value is that of the flag, in whichever way that is written."""
    monkeypatch.setenv("PET_TEE", "3")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "1")
    for words in (["-t", "9"], ["--tee=9"], ["--nproc_per_node", "x"], ["--nproc-per", "x"]):
        try:
            code: object = main([*words, __file__])
        except SystemExit as stop:  # of the parser
            code = stop.code
        assert 2 == code
        shown = capsys.readouterr().err
        assert shown.startswith("error: --"), shown
        assert "PET_" not in shown


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("PET_MAX_RESTARTS", "x", "--max-restarts: 'x' is not a whole number (from PET_MAX_RESTARTS)"),
        ("PET_STANDALONE", "maybe", "PET_STANDALONE: 'maybe' is neither 1 nor 0"),
        ("PET_START_METHOD", "thread", "--start-method: 'thread' cannot be used (from PET_START_METHOD)"),
        (
            "PET_NPROC_PER_NODE",
            "x",
            "--nproc-per-node: 'x' is not a number of workers (from PET_NPROC_PER_NODE)",
        ),
        ("PET_NNODES", "2:1", "--nnodes: '2:1' asks for at least 2 and at most 1 nodes (from PET_NNODES)"),
        ("PET_MASTER_PORT", "99999", "--master-port: 99999 is no port (from PET_MASTER_PORT)"),
        (
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
            "soon",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'soon' is not a",
        ),
    ],
)
def test_a_wrong_variable_is_named(
    name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody looks for it in the environment otherwise."""
    monkeypatch.setenv(name, text)
    code: object
    try:
        code = main([__file__])
    except SystemExit as stop:
        code = stop.code
    assert 2 == code
    assert said in capsys.readouterr().err
