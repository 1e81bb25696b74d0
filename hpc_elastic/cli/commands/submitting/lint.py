"""``hpc-elastic lint``: pitfalls in a job script, a training script or a job file."""

from __future__ import annotations

import json as to_json
import os

from hpc_elastic.cli.commands.submitting.shell_syntax import bad_line
from hpc_elastic.cli.say import hand_out, say
from hpc_elastic.errors import InputError, UnfitFileError
from hpc_elastic.slurm.job.job_file import build_spec, read_job_file
from hpc_elastic.slurm.lint.pitfalls import BOM, RULES, FileKind, LintFinding, Pitfall, kind_of
from hpc_elastic.slurm.lint.script import fixed, script_findings
from hpc_elastic.slurm.lint.training import python_syntax, training_findings
from hpc_elastic.store.plain_file import read_given
from hpc_elastic.store.users_file import users_file
from hpc_elastic.text import count_text, visible, visible_lines
from hpc_elastic.typed_json import whole_number

FORMAT = 1


def lint(
    files: list[str] | None = None, explain: str | None = None, *, fix: bool = False, json: bool = False
) -> int:
    """Show pitfalls in job scripts, training scripts and job files; exit code 1 if there are any."""
    if explain is not None:
        return _explain(explain)
    if not files:
        raise InputError("no file was given", where="FILE", fix="name a script, or give --explain CODE")
    named = dict.fromkeys(files)
    found = [_look_at(file, fix=fix, json=json, is_alone=len(named) == 1) for file in named]
    return 1 if any(found) else 0


def _look_at(file: str, *, fix: bool, json: bool, is_alone: bool) -> bool:
    """Show the pitfalls in one file; return whether there are any."""
    findings, changed = _fix(file) if fix else (_findings(file, _read(file)), 0)
    if json:
        hand_out(_json(file, findings))
    elif is_alone or findings or changed:
        _show(file, findings, changed)
    else:
        say(f"{visible(file)}: no findings")
    return bool(findings)


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


def _kind(file: str, text: str) -> FileKind:
    kind = kind_of(file, text)
    if kind is not None:
        return kind
    raise InputError(
        f"{file} is no script and no job file: its first line names no interpreter (#!), no line begins with "
        "#SBATCH, and its name does not tell",
        where="FILE",
        fix="give an sbatch script (#!/bin/bash), a training script (.py) or a job file in TOML (.toml)",
    )


def _findings(file: str, text: str) -> list[LintFinding]:
    kind = _kind(file, text)
    if kind is FileKind.JOB_FILE:
        return _of_job_file(file)
    if kind is FileKind.TRAINING:
        return training_findings(text)
    if kind is FileKind.PYTHON_JOB:
        of_options = script_findings(text, is_shell=False, is_directory=os.path.isdir)
        return sorted([*python_syntax(text), *of_options])
    found = script_findings(text, is_directory=os.path.isdir)
    return sorted([*_of_shell(text), *found])


def _of_job_file(file: str) -> list[LintFinding]:
    try:
        build_spec(read_job_file(file), {})
    except InputError as error:
        line = whole_number(error.where.removeprefix(f"{file}:"))
        place = f"{error.where}: " if error.where not in ("", file) and line is None else ""
        return [LintFinding(line or 1, Pitfall.JOB_FILE, f"{place}{error.message}", error.fix)]
    return []


def _of_shell(text: str) -> list[LintFinding]:
    found = bad_line(text)
    if found is None:
        return []
    return [LintFinding(found.line, Pitfall.SHELL_SYNTAX, f"the shell cannot read the script: {found.words}")]


def _read(file: str) -> str:
    try:
        return _text(file, read_given(file))
    except OSError as error:
        raise _unreadable(file, error) from None


def _text(file: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{file} is no text in UTF-8", where="FILE", fix="give a script or a job file in UTF-8"
        ) from None


def _unreadable(file: str, error: OSError) -> InputError:
    return InputError(f"{file} cannot be read: {error.strerror}", where="FILE", fix="check the path")


def _fix(file: str) -> tuple[list[LintFinding], int]:
    """Change a script where that is safe; return the findings that are left, and how many are not.

    Raises:
        InputError: no such change is known for it, or it cannot be written; the file is as before.
    """
    try:
        with users_file(file) as held:
            text = _text(file, held.read())
            found = _findings(file, text)
            new = _fixed(file, text, found)
            if new != text:
                held.exchange(new.encode("utf-8"))
    except FileNotFoundError as error:
        raise _unreadable(file, error) from None
    except OSError as error:
        fix = "its directory must be writable and have room; or lint a copy of it"
        raise InputError(
            f"{file} cannot be written, and is as before: {error.strerror or error}",
            where="--fix",
            fix=error.fix if isinstance(error, UnfitFileError) else fix,
        ) from None
    left = _findings(file, new)
    return left, len(found) - len(left)


def _fixed(file: str, text: str, findings: list[LintFinding]) -> str:
    """Return the text of a script with the changes that are safe.

    Raises:
        InputError: no such change is known for it.
    """
    if _kind(file, text) in (FileKind.JOB_FILE, FileKind.TRAINING):
        return text
    if not text.removeprefix(BOM).startswith("#!"):
        raise InputError(
            f"{file} is not changed: its first line names no interpreter (#!)",
            where="--fix",
            fix="begin the script with #!/bin/bash, then lint --fix",
        )
    return fixed(text, findings)


def _show(file: str, findings: list[LintFinding], changed: int) -> None:
    for found in findings:
        text = found.detail or RULES[found.rule].title
        say(f"{visible(file)}:{found.line}: {found.rule.value} {visible_lines(text)}")
        if found.fix:
            say(f"  fix: {visible(found.fix)}")
    if changed:
        say(f"{count_text(changed, 'finding')} fixed")
    if not findings:
        say("no findings")
        return
    fixable = sum(_is_fixable(found, findings) for found in findings)
    more = f", {fixable} can be fixed with --fix" if fixable else ""
    say(f"{count_text(len(findings), 'finding')}{more}; hpc-elastic lint --explain {findings[0].rule.value}")


def _is_fixable(one: LintFinding, findings: list[LintFinding]) -> bool:
    return RULES[one.rule].is_fixable and not any(other.rule is Pitfall.NO_SHEBANG for other in findings)


def _json(file: str, findings: list[LintFinding]) -> str:
    found = [
        {
            "code": one.rule.value,
            "line": one.line,
            "text": one.detail or RULES[one.rule].title,
            "fix": one.fix or RULES[one.rule].fix,
            "is_fixable": _is_fixable(one, findings),
        }
        for one in findings
    ]
    document = {"format": FORMAT, "kind": "lint", "file": os.path.abspath(file), "findings": found}
    return to_json.dumps(document, indent=2) + "\n"
