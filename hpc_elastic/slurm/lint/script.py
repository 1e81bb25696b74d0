"""The pitfalls of a job script, ours or a user's own. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from hpc_elastic.slurm.job.own_script import options_in
from hpc_elastic.slurm.job.shell_text import DOCUMENT, code_of
from hpc_elastic.slurm.job.traps import traps_at
from hpc_elastic.slurm.lint.commands import ScriptCommand, commands_of
from hpc_elastic.slurm.lint.mistakes import TRAINS, JobScript, mistakes
from hpc_elastic.slurm.lint.pitfalls import BOM, LintFinding, Pitfall

_OPTION = re.compile(r"#SBATCH\s+(.*)")
_TORCHRUN = re.compile(r"(?<![\w./-])torchrun(?![\w-])|torch\.distributed\.(?:run|launch)(?!\w)")
_STANDALONE = re.compile(r"(?<!\S)--?standalone(?![\w-])")
_REQUEUE = re.compile(r"(?<![\w./-])scontrol\s+requeue\b")
_TRAP = re.compile(r"(?<![\w./-])trap\s.*\b(?:SIG)?TERM\b")
_KILLS = re.compile(r"(?<!\S)(?:--kill-on-bad-exit(?:=[1-9]\d*)?|-K[1-9]*)(?!\S)")
_NO_KILL = re.compile(r"(?<!\S)(?:--no-kill|-k)(?!\S)")
# Our own scripts have their traps in another file.
_BECOMES = re.compile(r"\s*exec\s+(?:-\w+\s+)*[^\s<>&\d-]")  # not only the files of its output
_TO_BE_SIGNALLED = (
    "write `exec` before the program, so that it gets the signal itself; or start it with srun, without `B:`"
)
_HAS_STEPS = re.compile(  # also by the words of a shell; another script may have some
    r"(?<![\w-])(?:srun|mpirun|mpiexec(?:\.hydra)?|hpc-elastic|ray|parallel)(?![\w-])"
    r"|\A\s*(?:(?:\S*/)?(?:ba)?sh\s+(?:-\w+\s+)*)?\S+\.(?:ba)?sh(?!\S)"
)
_WAITS = re.compile(r"\s*(?:(?:do|then|else|while|until)\s+)?wait(?![\w-])")
_LOOPS = re.compile(r"\s*(?:while|until)\s")
_FINISHES = re.compile(r"(?<![\w-])(?:_he_)?finish(?:_srun)?(?![\w-])")  # in our own scripts, too


def script_findings(
    text: str, *, is_shell: bool = True, is_directory: Callable[[str], bool] = lambda _: True
) -> list[LintFinding]:
    """Return the pitfalls of a job script, in the order of its lines.

    Args:
        text: of the script.
        is_shell: its commands are those of a shell; otherwise only the options for sbatch are looked at.
        is_directory: tells whether a path is a directory; relative paths begin where sbatch is called.
    """
    plain = text.removeprefix(BOM).replace("\r\n", "\n")
    found = [LintFinding(1, Pitfall.WINDOWS_TEXT)] if plain != text else []
    if not plain.startswith("#!"):
        found.append(LintFinding(1, Pitfall.NO_SHEBANG))
    code = code_of(plain) if is_shell else plain
    commands, (options, late) = commands_of(plain, code) if is_shell else [], _options(plain, code)
    found += _of_options(options, late, commands)
    found += mistakes(JobScript(plain, code if is_shell else "", options, commands, is_directory))
    found += _of_commands(commands)
    if not (_FINISHES.search(code) or any(_FINISHES.search(one.runs) for one in commands)):
        found += _of_sruns(commands)
    found += _of_no_kill(options, commands)
    return sorted(found)


def _options(text: str, code: str) -> tuple[dict[int, str], dict[int, str]]:
    """Return the options of a script by line: those that sbatch reads, and those that it does not."""
    read: dict[int, str] = {}
    late: dict[int, str] = {}
    has_begun, at = False, 0
    for number, line in enumerate(text.split("\n"), 1):
        option = None if code.startswith(DOCUMENT, at) else _OPTION.match(line)  # one of a script within
        at += len(line) + 1
        if option is not None:
            (late if has_begun else read)[number] = option[1]
        has_begun = has_begun or (bool(line.strip()) and not line.lstrip().startswith("#"))
    return read, late


def _of_options(
    read: dict[int, str], late: dict[int, str], commands: list[ScriptCommand]
) -> Iterator[LintFinding]:
    for line, option in late.items():
        yield LintFinding(line, Pitfall.LATE_OPTION, f"sbatch does not read #SBATCH {option}")
    given = [(line, name, value) for line, words in read.items() for name, value in options_in([words])]
    refused = [line for line, name, _ in given if name == "no-requeue"]
    if refused:
        yield LintFinding(refused[0], Pitfall.NO_REQUEUE)
    elif not any(name == "open-mode" and value.startswith("a") for _, name, value in given):
        yield LintFinding(1, Pitfall.LOG_TRUNCATED)
    for line, name, value in given:
        if name == "signal":
            yield from _of_signal(line, value, commands)


def _of_signal(line: int, value: str, commands: list[ScriptCommand]) -> Iterator[LintFinding]:
    """Yield the finding about a warning that a script asks for and no program hears."""
    signal = re.match(r"(?:([RB]{1,2}):)?(\w+)", value)
    has_srun = any(one.starts_srun for one in commands)
    if signal is None:
        return
    if "B" not in (signal[1] or ""):
        if commands and not (has_srun or any(map(_HAS_STEPS.search, (one.runs for one in commands)))):
            yield LintFinding(line, Pitfall.SIGNAL_TO_NOBODY)
    elif not any(True for _ in traps_at(signal[2], (one.text for one in commands))):
        if has_srun:
            yield LintFinding(line, Pitfall.SIGNAL_TO_BATCH)
        elif not any(_BECOMES.match(one.code) for one in commands):
            yield LintFinding(line, Pitfall.SIGNAL_TO_BATCH, fix=_TO_BE_SIGNALLED)


def _of_commands(commands: list[ScriptCommand]) -> Iterator[LintFinding]:
    for one in commands:
        said = one.text if re.match(r"\s*trap\s", one.code) else one.runs  # the words of a trap are quoted
        if _REQUEUE.search(said):
            yield LintFinding(one.line, Pitfall.OWN_REQUEUE)
        if _TORCHRUN.search(one.runs) and not _STANDALONE.search(one.runs):
            yield LintFinding(one.line, Pitfall.TORCHRUN)
        if _KILLS.search(one.srun_options):
            yield LintFinding(one.line, Pitfall.KILL_ON_BAD_EXIT)


def _of_sruns(commands: list[ScriptCommand]) -> Iterator[LintFinding]:
    """Yield the ways in which a script ends before its tasks; the same trap is missed once."""
    has_trap, waited_for = False, _waited_for(commands)
    for n, one in enumerate(commands):
        has_trap = has_trap or _TRAP.search(one.code) is not None
        if not one.starts_srun:
            continue
        if re.match(r"\s*exec\s", one.code):
            yield LintFinding(one.line, Pitfall.EXEC_SRUN)
        elif not has_trap:
            yield LintFinding(one.line, Pitfall.NO_TRAP)
            has_trap = True
        if one.after == "&" and not waited_for[n]:
            yield LintFinding(one.line, Pitfall.SRUN_IN_BACKGROUND)


def _waited_for(commands: list[ScriptCommand]) -> list[bool]:
    """Return for each command whether the script outlives a signal while that runs in the background.

    It waits twice, or in a loop, as the signal ends the first wait; or it runs another program in the
    foreground, which the command serves or watches.
    """
    found = [False] * len(commands)
    for n in range(len(commands) - 2, -1, -1):
        behind = commands[n + 1]
        if _WAITS.match(behind.code) or _LOOPS.match(behind.code):
            found[n] = _waits_twice(commands, n + 1)
        else:
            found[n] = found[n + 1] or (behind.after != "&" and TRAINS.search(behind.runs) is not None)
    return found


def _waits_twice(commands: list[ScriptCommand], begin: int) -> bool:
    """Return whether commands wait twice, or in a loop, before the next one goes to the background."""
    waits = loops = 0
    for n in range(begin, len(commands)):
        one = commands[n]
        if one.after == "&":
            return False  # the waits behind it are for this one
        loops += _LOOPS.match(one.code) is not None
        waits += _WAITS.match(one.code) is not None
        if waits and waits + loops > 1:
            return True
    return False


def _of_no_kill(options: dict[int, str], commands: list[ScriptCommand]) -> Iterator[LintFinding]:
    of_job = [line for line, option in options.items() if _NO_KILL.search(option)]
    for one in commands:
        if one.starts_srun and bool(_NO_KILL.search(one.srun_options)) != bool(of_job):
            yield LintFinding(of_job[0] if of_job else one.line, Pitfall.HALF_NO_KILL)


def fixed(text: str, findings: list[LintFinding]) -> str:
    """Return a script with the changes that are safe.

    Args:
        text: of the script, which has a first line with ``#!``.
        findings: in it.
    """
    rules = {found.rule for found in findings}
    if Pitfall.WINDOWS_TEXT in rules:
        text = text.removeprefix(BOM).replace("\r\n", "\n")
    if Pitfall.LOG_TRUNCATED in rules:
        first, _, rest = text.partition("\n")
        text = f"{first}\n#SBATCH --open-mode=append\n{rest}"
    return text
