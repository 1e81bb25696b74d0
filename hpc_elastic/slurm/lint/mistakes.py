"""Mistakes that show at the first start, or at the first requeue: environment, output, ranks, names. Pure."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile

from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.slurm.job.own_script import options_in
from hpc_elastic.slurm.job.shell_text import COMMENT, DOCUMENT, QUOTED, SUBSTITUTED, Part, keywords, parts
from hpc_elastic.slurm.job.traps import traps_at
from hpc_elastic.slurm.lint.commands import ScriptCommand
from hpc_elastic.slurm.lint.pitfalls import OF_CHECKPOINTS, LintFinding, Pitfall

LAUNCHER = re.compile(
    r"(?<![\w.-])(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch|deepspeed)(?![\w-])"
)
TRAINS = re.compile(
    r"(?<![\w.-])(?:srun|python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|uv|poetry|apptainer|"
    r"singularity|Rscript|julia)(?![\w-])"
)
_REACHES_NODES = re.compile(
    r"(?<![\w-])(?:srun|mpirun|mpiexec|mpiexec\.hydra|ssh|pdsh|clush|parallel|deepspeed|ray|hpc-elastic)"
    r"(?![\w-])"
)
_LOGIN_SHELL = re.compile(r"#!.*\s(?:-\w*[li]|--login)\b")
_ACTIVATES = re.compile(r"\s*(conda|mamba|micromamba)\s+activate\b")
_HOOKS = {
    "conda": "conda shell.bash hook",
    "mamba": "mamba shell hook --shell bash",
    "micromamba": "micromamba shell hook --shell bash",
}
_MAY_HOOK = re.compile(
    r"\s*(?:(?:if|then|else|do|!|\{)\s+)*"
    r"(?:(?:source|\.|eval|module|ml)\s|(?:function\s+)?(?:conda|mamba|micromamba)\s*\()"
)
_SETS_OPTIONS = re.compile(r"(?<![\w-])set\s[^\n;&|]*")
_SINGLE_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_RANK = re.compile(r"\$\{?(SLURM_(?:PROCID|LOCALID|NODEID))\b")
_QUOTED_DOCUMENT = re.compile(r"<<-?[ \t]*[\\'\"]")
_TYPED = re.compile(r"[A-Za-z]")
_SETS = re.compile(r"\s*(?:export\s+|declare\s+(?:-\w+\s+)*|readonly\s+)?([A-Za-z_]\w*)=")
_IS_OF_A_RUN = re.compile(r"OUT|DIR|RUN|_ID|NAME|EXP|SAVE|CKPT|CHECKPOINT|FOLDER|PATH", re.IGNORECASE)
_MAY_CHANGE = re.compile(r"LOG|PORT|SEED|START|TIME|TMP|TEMP|CACHE|BACKUP|RDZV|CONTAINER", re.IGNORECASE)
_FROM_A_FILE = re.compile(r"(?:\$\(|`)\s*(?:cat\s|<)")
_WHICH_START = re.compile(r"(?!\s*(?:echo|printf)\b).*\bSLURM_RESTART_COUNT\b", re.DOTALL)
_NEW_EACH_TIME = re.compile(
    r"\$\(\s*date\b|`\s*date\b|\$\{?(?:RANDOM|EPOCHSECONDS)\b|uuidgen|openssl\s+rand|/proc/sys/kernel/random/uuid"
)
_OUTPUT_OPTION = re.compile(
    r"--?(?:(?:output|out|save|ckpt|checkpoint|work|run|exp|results?)[-_.]?(?:dir|path|folder)?|exp[-_]?name|"
    r"run[-_]?(?:name|id))[= ](?:\"[^\"]*\"|\$\([^()]*\)|`[^`]*`|\S)*"
)
_REMOVES = re.compile(r"\s*(?:\w+=\S*\s+)*rm\s+((?:-\S+\s+)*)(.*)", re.DOTALL)
_SCRATCH = re.compile(r"\"?(?:/tmp|/dev/shm|\$\{?(?:TMPDIR|SLURM_TMPDIR|TMP)\b)")
_NO_RESULT = re.compile(r"(?<![a-z])(?:tmp|temp|cache)(?![a-z])", re.IGNORECASE)
_LISTS = re.compile(r"(?<![\w-])ls\b([^|\n]*)")
_TAKES_ONE = re.compile(r"\|\s*(?:sort\b([^|\n]*)\|\s*)?(?:tail|head)\b")
_GOES_ON = re.compile(r"[^\n;&|]*\|")
_SPOOLED = re.compile(r"dirname[^|;&\n]*\$\{?(?:0\b|BASH_SOURCE)|\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}")
_IS_A_JOB = re.compile(r"(?!\s*(?:echo|printf)\b).*\bSLURM_(?:JOB_?ID|SUBMIT_DIR)\b", re.DOTALL)
_SUBMITTED_FROM = re.compile(r"\$\{SLURM_SUBMIT_DIR:?-[^\n]*\Z")
_VARIABLE = re.compile(r"\$(?:\{\w[^}]*\}|[A-Za-z_]\w*)")
_SRUN_LINE = re.compile(r"(?<![\w-])srun\s[^\n]*")
_ITSELF = re.compile(r"\$\{?0\b|BASH_SOURCE")


class JobScript(NamedTuple):
    """A job script whose shell can read it.

    Args:
        text: of it.
        code: the same with marks, see `code_of`.
        options: the words behind each ``#SBATCH`` that sbatch reads, by their line.
        commands: of it, in order.
        is_directory: tells whether a path is a directory; relative paths begin where sbatch is called.
    """

    text: str
    code: str
    options: Mapping[int, str]
    commands: list[ScriptCommand]
    is_directory: Callable[[str], bool]

    def values(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the values of an option for sbatch, each with its line.

        Args:
            name: the long name of the option.
        """
        for line, words in self.options.items():
            for found, value in options_in([words]):
                if found == name and value:
                    yield line, value

    def number(self, name: str) -> int | None:
        """Return the value of an option that is a plain number; the last one counts."""
        given = [value for _, value in self.values(name)]
        return int(given[-1]) if given and given[-1].isdecimal() else None

    @property
    def first_training(self) -> int:
        """The index of the first command that may be a training; behind all, if there is none."""
        found = (n for n, one in enumerate(self.commands) if TRAINS.search(one.runs))
        return next(found, len(self.commands))

    def lines_of_some_starts(self, asked: re.Pattern[str]) -> set[int]:
        """Return the lines that only some starts of the script run.

        Args:
            asked: matches a condition in such a line, or above it where the line is within an ``if``.
        """
        found: set[int] = set()
        ifs, is_asked = 0, False
        for line, begin, part in self._lines():
            own = self.code[begin : part.end]
            if asked.match(self.text, begin, part.end):
                is_asked = True
                found.update(() if _SETS.match(own) else (line,))
            if is_asked and ifs:
                found.update(range(line, line + self.text.count("\n", begin, part.end) + 1))
            ifs += keywords(own).count("if") - own.split()[:1].count("fi")
        return found

    @property
    def assignments(self) -> Iterator[tuple[int, str, str]]:
        """The line, the name and the text of each assignment of a variable."""
        for line, begin, part in self._lines():
            name = _SETS.match(self.code, begin, part.end)
            if name is not None:
                yield line, name[1], self.text[name.end() : part.end]

    def found_in_code(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
        """Yield where the text matches, each with its line; not in comments and here-documents."""
        for found in pattern.finditer(self.text):
            if self.code[found.start()] not in (COMMENT, DOCUMENT):
                yield self.line_of(found), found

    def line_of(self, found: re.Match[str]) -> int:
        """Return the line in which a match in the text begins, from 1."""
        return self.text.count("\n", 0, found.start()) + 1

    def _lines(self) -> Iterator[tuple[int, int, Part]]:
        """Yield each command with the line and the place where its first word stands."""
        line, at = 1, 0
        for part in parts(self.code):
            own = self.code[part.start : part.end]
            begin = part.start + len(own) - len(own.lstrip())
            line, at = line + self.text.count("\n", at, begin), begin
            yield line, begin, part


def mistakes(script: JobScript) -> Iterator[LintFinding]:
    """Yield the mistakes in a job script."""
    rules = (
        _environments,
        _exports,
        _output_directories,
        _variables_in_options,
        _hidden_failures,
        _typed_gpus,
        _ranks,
        _launchers_per_task,
        _one_node_of_many,
        _changing_names,
        _removals,
        _newest_by_name,
        _late_traps,
        _spooled,
    )
    for rule in rules:
        yield from rule(script)


def expanded(text: str) -> str:
    """Return the part of a command that the shell expands: no words in single quotes, no escaped marks."""

    def kept(found: re.Match[str]) -> str:
        word = found[0]
        return re.sub(r"\\.", "", word, flags=re.DOTALL) if word[0] == '"' else " " * len(word)

    return _SINGLE_QUOTED.sub(kept, text)


def _environments(script: JobScript) -> Iterator[LintFinding]:
    if _LOGIN_SHELL.match(script.text.partition("\n")[0]):
        return
    for one in script.commands:
        if _MAY_HOOK.match(one.code):
            return  # the functions that it defines are not known here
        found = _ACTIVATES.match(one.code)
        if found is not None:
            words = _HOOKS[found[1]]
            yield LintFinding(one.line, Pitfall.NO_HOOK, fix=f'write `eval "$({words})"` above the line')
            return


def _exports(script: JobScript) -> Iterator[LintFinding]:
    passed_on = re.search(r"(?<![\w])SLURM_EXPORT_ENV\b", script.text) is not None
    sruns = [one for one in script.commands if one.starts_srun]
    of_sruns = [_export_of(one) for one in sruns]
    for line, value in script.values("export"):
        is_meant = value.upper() in ("NONE", "NIL") and not sruns  # the batch script makes its own
        if _drops(value) and not (passed_on or is_meant) and (None in of_sruns or not sruns):
            yield LintFinding(
                line, Pitfall.EXPORT_DROPS, f"--export={value} drops the rest of the environment"
            )
    for one, own in zip(sruns, of_sruns, strict=True):
        if own is not None and _drops(own):
            yield LintFinding(one.line, Pitfall.EXPORT_DROPS, f"srun --export={own} drops the rest")


def _export_of(command: ScriptCommand) -> str | None:
    found = re.search(r"(?<!\S)--export(?:=|\s+)(\S+)", command.srun_options)
    return None if found is None else found[1]


def _drops(value: str) -> bool:
    return not any(word.upper() == "ALL" for word in value.split(","))


def _output_directories(script: JobScript) -> Iterator[LintFinding]:
    base = next((value for _, value in script.values("chdir")), "")
    for option in ("output", "error"):
        for line, value in script.values(option):
            directory = os.path.dirname(os.path.join(base, value))
            is_known = directory and not re.search(r"[%$~\\]", directory)
            is_made = f"HPC_ELASTIC_RUN_DIR={directory}\n" in script.text  # by submit
            if is_known and not is_made and not script.is_directory(directory):
                yield LintFinding(
                    line,
                    Pitfall.NO_OUTPUT_DIRECTORY,
                    f"the directory of --{option}={value} does not exist",
                    f"mkdir -p {directory}, before the job is submitted",
                )


def _variables_in_options(script: JobScript) -> Iterator[LintFinding]:
    for line, words in script.options.items():
        said = re.sub(r"(?<!\S)#.*", "", words)
        for found in [*_VARIABLE.finditer(said), *re.finditer(r"(?<=[= ])~(?=/)", said)]:
            yield LintFinding(
                line, Pitfall.VARIABLE_IN_OPTION, f"sbatch takes {found[0]} as it stands, not its value"
            )


def _hidden_failures(script: JobScript) -> Iterator[LintFinding]:
    has_pipefail = any(re.search(r"\bpipefail\b", one) for one in _SETS_OPTIONS.findall(script.code))
    if has_pipefail or re.search(r"PIPESTATUS|pipestatus", script.text):
        return
    for one, behind in zip(script.commands, script.commands[1:], strict=False):
        is_tee = re.match(r"\s*tee(?![\w-])", behind.code) is not None
        if one.after.startswith("|") and one.after != "||" and is_tee and TRAINS.search(one.runs):
            yield LintFinding(one.line, Pitfall.FAILURE_HIDDEN)


def _typed_gpus(script: JobScript) -> Iterator[LintFinding]:
    for option in ("gpus-per-node", "gpus", "gpus-per-task"):
        typed = [value for _, value in script.values(option) if _TYPED.search(value)]
        variable = f"SLURM_{option.upper().replace('-', '_')}"
        if not typed:
            continue
        used = re.compile(rf"\$(?:{variable}\b|\{{{variable}\}})")
        for line, _ in script.found_in_code(used):
            yield LintFinding(line, Pitfall.GPUS_TYPED, f"{variable} is {typed[-1]}, which is no number")


def _ranks(script: JobScript) -> Iterator[LintFinding]:
    has_srun = any(one.starts_srun for one in script.commands)
    starts_itself = any(map(_ITSELF.search, _SRUN_LINE.findall(script.text)))
    if starts_itself or not (has_srun or _is_wide(script)):
        return
    given = [(line, said) for line, _, said in script.assignments]
    started = [
        (one.line, _without_document(one.text)) for one in script.commands if one.starts_srun or not has_srun
    ]
    for line, said in sorted({*given, *started}):
        for name in sorted({found[1] for found in _RANK.finditer(expanded(said))}):
            yield LintFinding(
                line, Pitfall.RANK_OF_BATCH, f"${name} is read by the batch script, where it is always 0"
            )


def _without_document(text: str) -> str:
    """Return a command without a here-document whose end is quoted: the shell expands nothing of it."""
    document = _QUOTED_DOCUMENT.search(text)
    return text if document is None else text[: document.end()] + text[document.end() :].partition("\n")[0]


def _is_wide(script: JobScript) -> bool:
    return (script.number("nodes") or 1) > 1 or (script.number("ntasks") or 1) > 1


def _launchers_per_task(script: JobScript) -> Iterator[LintFinding]:
    each = script.number("ntasks-per-node")
    tasks, nodes = script.number("ntasks"), script.number("nodes")
    if each is None and tasks is not None and nodes:
        each = tasks // nodes
    if each is None or each <= 1:
        return
    for one in script.commands:
        own = re.search(r"(?<!\S)(?:--ntasks|-n|--ntasks-per-node)(?=[=\s\d])", one.srun_options)
        if one.starts_srun and own is None and LAUNCHER.search(one.runs):
            yield LintFinding(
                one.line, Pitfall.LAUNCHER_PER_TASK, f"each of {each} tasks on a node starts a launcher"
            )


def _one_node_of_many(script: JobScript) -> Iterator[LintFinding]:
    nodes = script.number("nodes")
    if nodes is None or nodes <= 1 or _REACHES_NODES.search(script.text):
        return
    for one in script.commands:
        if LAUNCHER.search(one.runs):
            yield LintFinding(one.line, Pitfall.ONE_NODE, f"{nodes} nodes are allocated, and one is used")


def _changing_names(script: JobScript) -> Iterator[LintFinding]:
    given, of_some_starts = list(script.assignments), script.lines_of_some_starts(_WHICH_START)
    kept = {name for _, name, said in given if _FROM_A_FILE.search(said)}  # by a start for the next one
    for line, name, said in given:
        is_of_run = _IS_OF_A_RUN.search(name) and not _MAY_CHANGE.search(name)
        is_kept = name in kept or _SCRATCH.match(said) is not None
        is_new = is_of_run and not is_kept and _NEW_EACH_TIME.search(expanded(said))
        if is_new and line not in of_some_starts:
            yield LintFinding(line, Pitfall.NEW_NAME, f"{name} is another one at each start")
    for one in script.commands:
        options = _OUTPUT_OPTION.finditer(expanded(one.text)) if TRAINS.search(one.runs) else ()
        for option in options:
            if _NEW_EACH_TIME.search(option[0]):
                name = re.split(r"[= ]", option[0])[0]
                yield LintFinding(one.line, Pitfall.NEW_NAME, f"{name} is another one at each start")


def _removals(script: JobScript) -> Iterator[LintFinding]:
    begin, of_some_starts = script.first_training, script.lines_of_some_starts(_WHICH_START)
    used = [word for one in script.commands[begin:] for word in re.split(r"[\s=]+", one.text)]
    kept = {word.strip("\"'").rstrip("/") for word in used}
    for one in script.commands[:begin]:
        found = _REMOVES.match(one.text)
        if found is None or not re.search(r"-\w*[rR]|--recursive", found[1]):
            continue
        if one.line in of_some_starts:
            continue
        for word in found[2].split():
            path = word.strip("\"'").removesuffix("/*").rstrip("/")
            is_named = re.search(r"ckpt|checkpoint", path, re.IGNORECASE) is not None
            if (path in kept or is_named) and not (_SCRATCH.match(word) or _NO_RESULT.search(path)):
                yield LintFinding(one.line, Pitfall.REMOVES, f"each start removes {path}")


def _newest_by_name(script: JobScript) -> Iterator[LintFinding]:
    for listed in _LISTS.finditer(script.text):
        taken = _TAKES_ONE.match(script.text, listed.end())
        if taken is None or OF_CHECKPOINTS.search(listed[1]) is None:
            continue
        by_number = re.search(r"-\w*[tv]", _first_options(listed[1])) or re.search(
            r"-\w*[Vngk]", _first_options(taken[1] or "")
        )
        is_used = script.code[listed.start()] in (SUBSTITUTED, QUOTED) or _GOES_ON.match(
            script.text, taken.end()
        )
        if by_number is None and is_used:
            yield LintFinding(script.line_of(listed), Pitfall.SORTED_AS_TEXT)


def _first_options(words: str) -> str:
    return " ".join(takewhile(lambda word: word.startswith("-"), words.split()))


def _late_traps(script: JobScript) -> Iterator[LintFinding]:
    signals = [value[2:].partition("@")[0] for _, value in script.values("signal") if value.startswith("B:")]
    waits = any(re.match(r"\s*wait\b", one.code) for one in script.commands)
    if not signals or waits or any(one.after == "&" for one in script.commands):
        return
    for place, _ in traps_at(signals[-1], (one.text for one in script.commands)):
        yield LintFinding(script.commands[place].line, Pitfall.TRAP_WAITS)


def _spooled(script: JobScript) -> Iterator[LintFinding]:
    of_some_starts = script.lines_of_some_starts(_IS_A_JOB)
    for line, found in script.found_in_code(_SPOOLED):
        is_default = (
            _SUBMITTED_FROM.search(script.text, max(0, found.start() - 80), found.start()) is not None
        )
        if not is_default and line not in of_some_starts:
            yield LintFinding(line, Pitfall.SPOOLED)
