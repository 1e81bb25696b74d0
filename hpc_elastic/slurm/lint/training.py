"""The pitfalls of a training script: missing calls, own handlers and requeues, changing names. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from hpc_elastic.slurm.job.environment import UNREAD, tree_of
from hpc_elastic.slurm.lint.pitfalls import OF_CHECKPOINTS, LintFinding, Pitfall

_CALLS = {
    Pitfall.NO_TICK: "tick",
    Pitfall.NO_MARK: "checkpoint_saved",
    Pitfall.NO_STOP: "should_stop",
}
_LIGHTNING = (
    "callbacks=[hpc_elastic.frameworks.lightning.ElasticCallback()], and "
    "fit(..., ckpt_path=elastic.newest(trainer))"
)
_TRANSFORMERS = (
    "callbacks=[hpc_elastic.frameworks.transformers.ElasticTrainerCallback()], and "
    "train(resume_from_checkpoint=elastic.newest(trainer))"
)
_ACCELERATE = "for step in hpc_elastic.frameworks.torch.Checkpoints(...).steps(N, state)"
_CALLBACKS = {  # the class of a loop, and the words that it needs
    "lightning": ("Trainer", _LIGHTNING),
    "transformers": ("Trainer", _TRANSFORMERS),
    "accelerate": ("Accelerator", _ACCELERATE),
}
_SUBMITIT = (
    'submitit.AutoExecutor(folder, cluster="hpcelastic"), or with an executor of submitit\'s own '
    "submit(hpc_elastic.submitit.ElasticTask(function), ...)"
)
_EXECUTORS = ("AutoExecutor", "SlurmExecutor")
_OF_DEEPSPEED = {  # all ranks save and load, each its part
    Pitfall.NO_TICK: "call `worker.tick(engine.global_steps)` after `engine.step()`",
    Pitfall.NO_MARK: "behind `engine.save_checkpoint(folder, tag)`, on all ranks: "
    "`worker.checkpoint_saved(engine.global_steps, f'{folder}/{tag}')`",
    Pitfall.NO_STOP: "where `worker.should_stop()` is true, `engine.save_checkpoint(...)` on all ranks and "
    "leave the loop",
    Pitfall.NO_RESUME: "`engine.load_checkpoint(folder, tag)` with the tag of `worker.latest_checkpoint()`",
}
_PACKAGES = {"pytorch_lightning": "lightning", "lightning": "lightning"} | {
    name: name for name in ("transformers", "accelerate")
}
_CLOCKS = {"strftime", "now", "today", "uuid4", "uuid1", "time"}
_PATH_BEGINS = re.compile(r"\s*[\w.~-]*/\S*$")
_NO_CHECKPOINT = (".log", ".txt", ".out", ".err", ".csv", ".json", ".jsonl", ".png", ".pdf", ".html")
_SIGNALS = {"SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT"}
_HELPERS = "hpc_elastic.frameworks"  # they call the functions of the worker


def training_findings(text: str) -> list[LintFinding]:
    """Return the pitfalls of a training script, in the order of its lines."""
    tree = _read(text)
    if isinstance(tree, LintFinding):
        return [tree]
    return sorted(
        [
            *_own_handlers(tree),
            *_missing_calls(tree),
            *_other_requeues(tree),
            *_changing_names(tree, has_run_id="WANDB_RUN_ID" in text),
            *_newest_by_name(tree),
        ]
    )


def python_syntax(text: str) -> list[LintFinding]:
    """Return the line at which Python cannot read a script, if there is one."""
    tree = _read(text)
    return [tree] if isinstance(tree, LintFinding) else []


def _read(text: str) -> ast.AST | LintFinding:
    try:
        return tree_of(text)
    except UNREAD as error:
        line = getattr(error, "lineno", None) or 1
        said = error.args[0] if error.args else "too many brackets inside each other"
        return LintFinding(line, Pitfall.PYTHON_SYNTAX, f"Python cannot read the script: {said}")


def _own_handlers(tree: ast.AST) -> Iterator[LintFinding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == "signal" and node.args:
            name = _name(node.args[0])
            if name in _SIGNALS:
                yield LintFinding(
                    node.lineno, Pitfall.OWN_HANDLER, f"the script has a handler of its own for {name}"
                )


def _missing_calls(tree: ast.AST) -> Iterator[LintFinding]:
    imported = list(_imported(tree))
    if any(name.startswith(_HELPERS) for name in imported):
        return
    missing = _missing_executor(tree, imported) or _missing_callback(tree, imported)
    if missing is not None:
        yield missing
        return
    called = {_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    fixes = _OF_DEEPSPEED if "deepspeed" in _tops(imported) and "initialize" in called else {}
    for pitfall, name in _CALLS.items():
        if name not in called:
            yield LintFinding(1, pitfall, fix=fixes.get(pitfall, ""))
    if "checkpoint_saved" in called and "latest_checkpoint" not in called:
        yield LintFinding(1, Pitfall.NO_RESUME, fix=fixes.get(Pitfall.NO_RESUME, ""))


def _missing_executor(tree: ast.AST, imported: list[str]) -> LintFinding | None:
    """Return the place where an executor of submitit is made that knows nothing of us."""
    tops = _tops(imported)
    if "submitit" not in tops or "hpc_elastic" in tops:
        return None
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        ours = any(
            word.arg == "cluster"
            and isinstance(word.value, ast.Constant)
            and word.value.value == "hpcelastic"
            for word in call.keywords
        )
        if _name(call.func) in _EXECUTORS and not ours:
            title = "the executor of submitit has nothing of hpc_elastic"
            return LintFinding(call.lineno, Pitfall.NO_CALLBACK, title, _SUBMITIT)
    return None


def _tops(imported: list[str]) -> set[str]:
    """Return the names of the packages that are imported."""
    return {name.partition(".")[0] for name in imported}


def _missing_callback(tree: ast.AST, imported: list[str]) -> LintFinding | None:
    """Return the place where a framework's loop is made; it takes a callback, not calls in a loop."""
    used = {_PACKAGES.get(name.partition(".")[0]) for name in imported}
    own = _own_classes(tree)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) not in own)
    for call in calls:
        for framework, (kind, fix) in _CALLBACKS.items():
            if _name(call.func).endswith(kind) and framework in used:
                title = f"the {kind} of {framework} has nothing of hpc_elastic"
                return LintFinding(call.lineno, Pitfall.NO_CALLBACK, title, fix)
    return None


def _own_classes(tree: ast.AST) -> set[str]:
    """Return the names of the classes that a script defines and that no class of a framework is made of."""
    kinds = tuple(kind for kind, _ in _CALLBACKS.values())
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {one.name for one in classes if not any(_name(base).endswith(kinds) for base in one.bases)}


def _other_requeues(tree: ast.AST) -> Iterator[LintFinding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            is_auto = any(
                word.arg == "auto_requeue"
                and isinstance(word.value, ast.Constant)
                and word.value.value is True
                for word in node.keywords
            )
            if is_auto or re.match(r"scontrol\s+requeue\b", " ".join(_texts(node))):
                yield LintFinding(node.lineno, Pitfall.OTHER_REQUEUE)


def _texts(call: ast.Call) -> Iterator[str]:
    """Yield the text at the begin of the first argument of a call: a command, or its words."""
    first = call.args[0] if call.args else None
    words = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
    for word in words:
        begin = word.values[0] if isinstance(word, ast.JoinedStr) and word.values else word
        if not (isinstance(begin, ast.Constant) and isinstance(begin.value, str)):
            return
        yield begin.value


def _changing_names(tree: ast.AST, *, has_run_id: bool) -> Iterator[LintFinding]:
    for node in ast.walk(tree):
        if _is_path_of_now(node):
            yield LintFinding(node.lineno, Pitfall.NEW_NAME_IN_PROGRAM, "a path is another one at each start")
        elif _begins_wandb(node) and not has_run_id:
            yield LintFinding(
                node.lineno,
                Pitfall.NEW_NAME_IN_PROGRAM,
                "each start begins another run of W&B",
                'wandb.init(id=os.environ["SLURM_JOB_ID"], resume="allow", ...)',
            )


def _is_path_of_now(node: ast.AST) -> TypeGuard[ast.expr]:
    """Return whether a text begins as a path does, and has the time or a random name in it."""
    if isinstance(node, ast.Call):
        return _name(node.func) == "strftime" and any("/" in text for text in _texts(node))
    begin = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else None
    if not (isinstance(begin, ast.Constant) and _PATH_BEGINS.match(str(begin.value))):
        return False
    end = node.values[-1] if isinstance(node, ast.JoinedStr) else None
    if isinstance(end, ast.Constant) and str(end.value).endswith(_NO_CHECKPOINT):
        return False
    calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    return any(_name(call.func) in _CLOCKS for call in calls)


def _begins_wandb(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether ``wandb.init`` is called, and not told which run goes on."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "init"):
        return False
    told = {"id", "resume", "reinit", None} & {word.arg for word in node.keywords}
    return _name(node.func.value) == "wandb" and not told


def _newest_by_name(tree: ast.AST) -> Iterator[LintFinding]:
    """Yield where names of checkpoints are sorted without a key, and the last one is taken."""
    named = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _sorts_checkpoints(node.value):
            named.update({target.id: node.value for target in node.targets if isinstance(target, ast.Name)})
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_last(node.slice):
            of = node.value
            found = named.get(of.id) if isinstance(of, ast.Name) else of
            if found is not None and _sorts_checkpoints(found):
                yield LintFinding(found.lineno, Pitfall.SORTED_AS_TEXT_IN_PROGRAM)
        elif isinstance(node, ast.Call) and _name(node.func) == "max" and _takes_checkpoints(node):
            yield LintFinding(node.lineno, Pitfall.SORTED_AS_TEXT_IN_PROGRAM)


def _sorts_checkpoints(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) == "sorted" and _takes_checkpoints(node)


def _takes_checkpoints(call: ast.Call) -> bool:
    """Return whether a call without a key gets the files of a pattern that names checkpoints."""
    first = call.args[0] if len(call.args) == 1 and not call.keywords else None
    if not (isinstance(first, ast.Call) and _name(first.func) in ("glob", "iglob", "listdir", "rglob")):
        return False
    texts = (str(node.value) for node in ast.walk(first) if isinstance(node, ast.Constant))
    return any(map(OF_CHECKPOINTS.search, texts))


def _is_last(index: ast.expr) -> bool:
    return (
        isinstance(index, ast.UnaryOp)
        and isinstance(index.op, ast.USub)
        and isinstance(index.operand, ast.Constant)
        and index.operand.value == 1
    )


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
