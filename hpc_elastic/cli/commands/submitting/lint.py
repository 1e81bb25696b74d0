"""``hpc-elastic lint``: pitfalls in a job script, a training script or a job file."""

from __future__ import annotations

import json as to_json
import os
import re
import subprocess  # noqa: TID251 - asks the shell of a script whether it can read it
from typing import Annotated, Optional

from hpc_elastic.cli.parameters import Flag, Positional
from hpc_elastic.cli.run_argument import AsJson
from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job.job_file import build_spec, read_job_file
from hpc_elastic.slurm.lint.pitfalls import RULES, LintFinding, Pitfall
from hpc_elastic.slurm.lint.script import fixed, script_findings
from hpc_elastic.slurm.lint.training import training_findings
from hpc_elastic.store.plain_file import read_given
from hpc_elastic.text import count_text, visible
from hpc_elastic.typed_json import whole_number

FORMAT = 1
_SHELLS = re.compile(r"#!\s*(?:/usr/bin/env\s+)?\S*?\b(bash|sh|dash|ksh)\b")
_ASK_S = 10.0
_LINE = re.compile(r"line (\d+): (.*)")

LintedFile = Annotated[
    Optional[str],  # noqa: UP045 - it is read at run time on Python 3.10 too
    Positional("[FILE]", "An sbatch script, a training script (.py) or a job file (.toml)."),
]
Explained = Annotated[
    Optional[str],  # noqa: UP045
    Flag(
        ("--explain",),
        "Print the reason and the fix of a rule, in place of a FILE.",
        "CODE",
        values=tuple(one.value for one in Pitfall),
    ),
]
Fix = Annotated[bool, Flag(("--fix",), "Change the script where that is safe.")]


def lint(
    file: LintedFile = None,
    explain: Explained = None,
    fix: Fix = False,  # noqa: FBT002 - a flag of the command line
    json: AsJson = False,  # noqa: FBT002 - as above
) -> int:
    """Show pitfalls in a job script, training script or job file; exit code 1 if there are any."""
    if explain is not None:
        return _explain(explain)
    if file is None:
        raise InputError("no file was given", where="FILE", fix="name a script, or give --explain CODE")
    text = _read(file)
    findings = _findings(file, text)
    changed = 0
    if fix and (new := fixed(text, findings)) != text:
        _write(file, new)
        left = _findings(file, new)
        changed, findings = len(findings) - len(left), left
    hand_out(_json(file, findings)) if json else _show(file, findings, changed)
    return 1 if findings else 0


def _explain(code: str) -> int:
    known = {pitfall.value: pitfall for pitfall in Pitfall}
    pitfall = known.get(code.upper())
    if pitfall is None:
        raise InputError(
            f"there is no rule {code!r}", where="--explain", fix=f"give one of {', '.join(known)}"
        )
    rule = RULES[pitfall]
    say(f"{pitfall.value}: {rule.title}\n\n{rule.why}\n\nFix: {rule.fix}")
    return 0


def _findings(file: str, text: str) -> list[LintFinding]:
    if file.endswith(".toml"):
        return _of_job_file(file)
    first = text.partition("\n")[0]
    if file.endswith(".py") or (first.startswith("#!") and "python" in first):
        return training_findings(text)
    return sorted([*_of_shell(text, first), *script_findings(text)])


def _of_job_file(file: str) -> list[LintFinding]:
    try:
        build_spec(read_job_file(file), {})
    except InputError as error:
        line = whole_number(error.where.removeprefix(f"{file}:"))
        return [LintFinding(line or 1, Pitfall.JOB_FILE, str(error).splitlines()[0])]
    return []


def _of_shell(text: str, first: str) -> list[LintFinding]:
    """Ask the shell of a script whether it can read it; nothing of the script is run."""
    shell = _SHELLS.match(first)
    if shell is None:
        return []
    plain = text.replace("\r\n", "\n")
    try:
        done = subprocess.run(
            [shell[1], "-n"], input=plain, capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    said = _LINE.search(done.stderr)
    if not done.returncode:
        return []
    line, words = (int(said[1]), said[2]) if said else (1, done.stderr.strip())
    return [LintFinding(line, Pitfall.SHELL_SYNTAX, f"the shell cannot read the script: {words}")]


def _read(file: str) -> str:
    try:
        return read_given(file).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{file} is no text in UTF-8", where="FILE", fix="give a script or a job file in UTF-8"
        ) from None
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}", where="FILE", fix="check the path"
        ) from None


def _write(file: str, text: str) -> None:
    try:
        with open(file, "w", encoding="utf-8", newline="") as opened:  # keeps its mode, owner and links
            opened.write(text)
    except OSError as error:
        raise InputError(
            f"{file} cannot be written: {error.strerror}", where="--fix", fix="lint without --fix"
        ) from None


def _show(file: str, findings: list[LintFinding], changed: int) -> None:
    for found in findings:
        text = found.detail or RULES[found.rule].title
        say(f"{visible(file)}:{found.line}: {found.rule.value} {visible(text)}")
    if changed:
        say(f"{count_text(changed, 'finding')} fixed")
    if not findings:
        say("no findings")
        return
    fixable = sum(RULES[found.rule].is_fixable for found in findings)
    more = f", {fixable} can be fixed with --fix" if fixable else ""
    say(f"{count_text(len(findings), 'finding')}{more}; hpc-elastic lint --explain {findings[0].rule.value}")


def _json(file: str, findings: list[LintFinding]) -> str:
    found = [
        {
            "code": one.rule.value,
            "line": one.line,
            "text": one.detail or RULES[one.rule].title,
            "fix": RULES[one.rule].fix,
            "is_fixable": RULES[one.rule].is_fixable,
        }
        for one in findings
    ]
    document = {"format": FORMAT, "kind": "lint", "file": os.path.abspath(file), "findings": found}
    return to_json.dumps(document, indent=2) + "\n"
