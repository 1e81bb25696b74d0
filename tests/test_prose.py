"""No decision reads a sentence that was written for people: who reads texts at all is named here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "hpc_elastic"
PROSE = frozenset(
    {"detail", "error", "headline", "message", "reason", "said", "text", "told", "why", "words"}
)
"""Names of variables and fields that hold what people read."""
_METHODS = frozenset(
    {"startswith", "endswith", "removeprefix", "removesuffix", "split", "rsplit", "partition", "rpartition"}
    | {"find", "index", "count"}
)
_PATTERNS = frozenset(["match", "search", "fullmatch", "findall", "finditer", "split", "sub"])
_SAME = frozenset(
    {"lower", "upper", "casefold", "strip", "lstrip", "rstrip", "decode", "split", "splitlines"}
)  # of the same text
READERS = {
    # what Slurm says
    "report/queue_text.py": "Slurm's reason why a job waits",
    "slurm/client/commands.py": "what Slurm's commands print on stderr",
    "slurm/client/deadlines.py": "times in Slurm's configuration",
    "slurm/client/environment.py": "variables of Slurm",
    "slurm/client/job_standing.py": "Slurm's reasons and exit codes",
    "slurm/client/parse.py": "what Slurm's commands print, its lists of hosts among it",
    "slurm/client/answers.py": "the answers of squeue, sinfo and scontrol",
    "slurm/nodes/nodes.py": "numbers that Slurm prints",
    # what bash, Python, torch and programs say
    "agent/server/api.py": "torch's words for a store that lacks an operation",
    "node/hangs/look.py": "stacks that Python prints",
    "processes/numa.py": "what the driver of GPUs tells",
    "processes/linux.py": "files of the kernel",
    "slurm/end/history.py": "bash's words for a line that failed",
    "slurm/job/job_file.py": "the TOML parser's place of an error",
    "slurm/submit/validate.py": "bash's place of a syntax error; scripts of the user",
    "slurm/watch/process_tree.py": "what a helper process prints",
    "store/mount.py": "the kernel's table of mounts",
    # what the user has written
    "api/start.py": "options in an error, which are put as Python's arguments",
    "cli/commands/submitting/adopt.py": "lines of job scripts",
    "cli/app.py": "words of a command line",
    "cli/usage.py": "words of a command line",
    "cli/run/options.py": "options of a command line",
    "cli/run/values.py": "options of a command line",
    "frameworks/torch/stores.py": "NCCL's and Gloo's variables",
    "node/listeners/listeners.py": "options of a command line",
    "multiprocessing/logs.py": "a template of the user",
    "rendezvous/utils.py": "endpoints",
    "slurm/job/environment.py": "training scripts",
    "slurm/adopt/script.py": "job scripts",
    "slurm/adopt/launch.py": "job scripts",
    "slurm/adopt/facts.py": "job scripts",
    "slurm/adopt/checks.py": "job scripts",
    "cli/commands/submitting/lint.py": "job scripts",
    "slurm/job/first_job.py": "job scripts",
    "slurm/lint/pitfalls.py": "job scripts",
    "slurm/lint/commands.py": "job scripts",
    "slurm/lint/mistakes.py": "job scripts",
    "slurm/lint/script.py": "job scripts",
    "slurm/lint/training.py": "training scripts",
    "slurm/job/notice.py": "a template of the user",
    "slurm/run_jobs/job_start.py": "the log of a job",
    "report/explain/job_files.py": "job scripts",
    "secrets_out.py": "words of programs, of which secrets are left out",
    "slurm/job/options.py": "options of a job",
    "slurm/job/script.py": "words of a command",
    "slurm/job/shell_text.py": "job scripts",
    "settings/values.py": "values of a job file",
    "slurm/job/worker_launcher.py": "commands",
    "slurm/local/srun.py": "words of a command line",
    "slurm/submit/run_dir.py": "commands",
    # names and numbers that this package writes for itself, and characters of any text
    "paths.py": "characters that a file's name cannot have",
    "meet/member_names.py": "names of members, which are no sentences",
    "typed_json.py": "characters of JSON",
    "text.py": "characters that act on a terminal",
}
"""Modules that may read a text, and whose it is; none of them is a sentence of this package."""


def _name(node: ast.expr) -> str:
    """Return the last name in an expression that stands for one text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SAME:
        return _name(node.func.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return _name(node.args[0])
    return ""


def _is_layout(call: ast.Call) -> bool:
    r"""Tell whether a call only takes lines or white space apart: ``split()``, ``partition("\n  fix: ")``."""
    if not call.args:
        return True
    first = call.args[0]
    return isinstance(first, ast.Constant) and str(first.value).startswith("\n")


def _reads(node: ast.AST) -> bool:
    """Tell whether an expression looks for something in a text that people read."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _METHODS and _name(node.func.value) in PROSE:
            return not _is_layout(node)
        return node.func.attr in _PATTERNS and any(_name(argument) in PROSE for argument in node.args)
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.In | ast.NotIn):
        return False
    is_text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    is_line_end = is_text and str(getattr(node.left, "value", "")).startswith("\n")
    return (is_text or isinstance(node.left, ast.JoinedStr | ast.Name | ast.Attribute)) and (
        not is_line_end and _name(node.comparators[0]) in PROSE
    )


def readers_in(source: str) -> Iterator[int]:
    """Yield the lines of a module that look for something in a text that people read."""
    for node in ast.walk(ast.parse(source)):
        if _reads(node):
            yield getattr(node, "lineno", 0)


def _found() -> dict[str, list[int]]:
    places = (path for path in PACKAGE.rglob("*.py") if "testing" not in path.relative_to(PACKAGE).parts)
    lines = {str(path.relative_to(PACKAGE)): sorted(readers_in(path.read_text())) for path in places}
    return {name: found for name, found in lines.items() if found}


def test_only_foreign_texts_are_read() -> None:
    """A fact that a decision needs is a field; the sentence about it is made last."""
    assert {} == {name: lines for name, lines in _found().items() if name not in READERS}


def test_every_named_reader_reads() -> None:
    """An entry that is not needed any more would hide a new reader."""
    assert [] == sorted(READERS.keys() - _found().keys())


@pytest.mark.parametrize(
    ("source", "is_reader"),
    [
        ('if why.startswith("the budget"): pass', True),
        ('entry.detail.partition(": requeue ")[0]', True),
        ('drain.detail.removesuffix("x")', True),
        ("name in why.split()", True),
        ('"queues more" in text', True),
        ('"held" in job.reason.lower()', True),
        ("_PATTERN.fullmatch(record.detail)", True),
        ('re.search("missing: (.*)", str(error))', True),
        ('" ".join(str(error).split())', False),
        (r'str(error).partition("\n")[0]', False),
        (r'"\n  fix: " in message', False),
        ("name in nodes", False),
        ('path.startswith("/")', False),
        ("entry.detail", False),
    ],
)
def test_a_reader_is_told_from_layout(source: str, is_reader: bool) -> None:
    """Each form in which this package once read its own sentences is found."""
    assert is_reader is bool(list(readers_in(source)))
