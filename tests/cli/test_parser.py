"""The words of the commands that people type: their meaning, slips, and what to write instead."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.cli import app
from hpc_elastic.cli.app import values_of
from hpc_elastic.cli.commands import COMMANDS, function_of
from hpc_elastic.cli.main import main

MEANINGS: list[tuple[str, dict[str, Any]]] = [
    ("status", {}),
    ("status R", {"run": "R"}),
    ("status R --timeline", {"run": "R", "timeline": True}),
    ("status --timeline R", {"run": "R", "timeline": True}),
    ("logs R -fn 5", {"run": "R", "follow": True, "lines": 5}),
    ("logs R -n5", {"run": "R", "lines": 5}),
    ("logs --rank 0 R --node=n1 -n 0", {"run": "R", "rank": 0, "node": "n1", "lines": 0}),
    ("logs R --node=", {"run": "R", "node": ""}),
    ("logs R --grep -x", {"run": "R", "grep": "-x"}),
    ("logs R --grep --follow-up", {"run": "R", "grep": "--follow-up"}),
    ("logs -- -R", {"run": "-R"}),
    ("scale R -N 3 --keep-spares", {"run": "R", "nodes": 3, "keep_spares": True}),
    ("adopt -", {"script": "-"}),
    ("adopt s --per-node", {"script": "s", "per_node": True}),
    ("adopt s --job", {"script": "s", "per_node": False}),
    ("nodes", {}),
    ("nodes suspect --reason slow n3 n4", {"words": ["suspect", "n3", "n4"], "reason": "slow"}),
    ("doctor d --nodes 2 -- -p short", {"directory": "d", "nodes": 2, "srun_options": ("-p", "short")}),
    (
        "submit j.toml --exclusive --no-resubmit -e A=1 -o hold --setup a --setup -b -- t.py --nodes 3",
        {
            "job_file": "j.toml",
            "given": {
                "exclusive": True,
                "resubmit": False,
                "env": ["A=1"],
                "sbatch": ["hold"],
                "setup": ["a", "-b"],
            },
            "command": ("t.py", "--nodes", "3"),
        },
    ),
]


@pytest.mark.parametrize(("line", "values"), MEANINGS, ids=[line for line, _ in MEANINGS])
def test_a_line_gives_a_command_its_values(line: str, values: dict[str, Any]) -> None:
    """What is left out has no value, so that the command's own default holds."""
    name, *words = line.split(" ")
    assert values == values_of(name, words)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_its_arguments_and_no_others(name: str) -> None:
    """One that may be left out has a default; the summary of the help is that of the function."""
    command, function = COMMANDS[name], function_of(name)
    needed = {word.name: word.is_needed for word in command.words}
    needed.update({option.name: option.is_needed for option in command.options})
    needed.update(dict.fromkeys(["given"] if command.takes_job else [], True))
    needed.update(dict.fromkeys(["line"] if command.takes_line else [], True))
    parameters = dict(inspect.signature(function).parameters)
    behind = parameters.pop(command.behind, None)
    assert bool(command.behind) == (behind is not None)
    assert needed == {key: one.default is one.empty for key, one in parameters.items()}
    assert command.summary == (function.__doc__ or "").partition("\n")[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("status R S", "unrecognized arguments: S\n  fix: see hpc-elastic status --help"),
        ("status --timelin R", "unrecognized arguments: --timelin\n  fix: did you mean --timeline?"),
        ("status --timeline=yes R", "--timeline: ignored explicit argument 'yes'\n  fix: see hpc-elastic"),
        ("stop", "the following arguments are required: RUN\n  fix: see hpc-elastic stop --help"),
        ("logs R --node", "--node: expected one argument\n  fix: write --node NAME; see hpc-elastic logs"),
        ("submit --nodes --time 4h", "--nodes: expected one argument\n  fix: write --nodes N|MIN:MAX; see"),
        ("logs R --rank -1", "--rank: '-1' is less than 0\n  fix: write 0 or more\n"),
        ("logs R -- train.py", "unrecognized arguments: train.py\n"),
        ("scale R", "the following arguments are required: -N/--nodes\n"),
        ("--nosuch", "unrecognized arguments: --nosuch\n  fix: see hpc-elastic --help"),
        ("statuz R", "No such command 'statuz'.\n  fix: did you mean status? see hpc-elastic --help"),
        ("train.py -x", "No such command 'train.py'.\n  fix: one agent with that program: hpc-elastic run"),
    ],
)
def test_a_slip_is_one_error_with_a_way_on(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and nothing on stdout."""
    assert 2 == main(line.split(" "))
    shown = capsys.readouterr()
    assert ("", True) == (shown.out, shown.err.startswith(f"error: {said}")), shown.err


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("submit --conda-env x -- t.py", "write --conda NAME"),
        ("submit --snapshot -- t.py", "name the copy with --workdir"),
        ("submit --after 17 -- t.py", "--dependency afterok:JOBID"),
        (
            "submit --profile mine -- t.py",
            "[profiles.mine] into a settings file; Slurm's own profiling: -o profile",
        ),
        ("submit --container-image i.sif -- t.py", "--container IMAGE, which Enroot runs"),
        ("submit -o container-image=i.sif -- t.py", "--container IMAGE, which Enroot runs"),
        ("render --nproc-per-node 4 -- t.py", "write --workers-per-node N"),
        ("submit --nodez 2 -- t.py", "did you mean --nodes"),
        ("submit --nodes 2 t.py --lr 1", "hpc-elastic submit --nodes 2 -- t.py --lr 1"),
        ("submit --json t.py --lr 1", "hpc-elastic submit --json -- t.py --lr 1"),
        ("submit --json train.toml t.py", "hpc-elastic submit --json train.toml -- t.py"),
        ("submit --follow -- t.py", "hpc-elastic logs -f RUN"),
        ("submit --rank 3", "--rank is an option of hpc-elastic watch RUN --rank"),
        ("submit --gpu 4 -- t.py", "--gpus-per-node N"),
        ("status --watch R", "hpc-elastic watch RUN"),
        ("logs --tail 5 R", "write --lines N"),
        ("stop R --force", "hpc-elastic cancel RUN"),
        ("report R --html", "write --format html"),
        ("status R --grep x", "--grep is an option of hpc-elastic logs R --grep"),
    ],
)
def test_what_people_know_from_elsewhere_is_told_as_it_is_written_here(
    line: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what does it instead, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    assert 2 == app.run(line.split(" "))
    assert fix in capsys.readouterr().err.partition("\n  fix: ")[2]
    assert [] == list(tmp_path.iterdir())


def test_control_characters_of_a_line_are_shown_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    """They do not act on the terminal."""
    assert 2 == app.run(["status", "--\x1b[31mx"])
    assert r"unrecognized arguments: --\x1b[31mx" in capsys.readouterr().err
