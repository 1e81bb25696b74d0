"""The flags of ``accelerate launch`` and ``deepspeed`` as flags of agents and variables of workers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpc_elastic.named_tuple import NamedTuple

_WORD = re.compile(
    r"(?:\$\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)|\$\([^()]*\)|\"(?:\\.|[^\"\\])*\"|'[^']*'|\\.|[^\s\"'\\])+",
    re.DOTALL,
)
_NOT_NEEDED = ""  # each round has addresses and ports of its own
_OF_ACCELERATE: Mapping[
    str, str | None
] = {  # the meaning of a flag for an agent; None: a flag without a value
    "num-processes": "workers",
    "num-machines": "nodes",
    "machine-rank": "rank",
    **dict.fromkeys(("main-process-ip", "main-process-port", "rdzv-backend", "rdzv-conf"), _NOT_NEEDED),
    "mixed-precision": "precision",
    "dynamo-backend": "dynamo",
    "main-training-function": _NOT_NEEDED,
    "num-cpu-threads-per-process": "threads",
    **dict.fromkeys(("max-restarts", "monitor-interval", "role"), "kept"),
    **dict.fromkeys(("multi-gpu", "same-network"), None),
    **dict.fromkeys(("module", "m", "no-python"), None),
}
_OF_TORCHRUN: Mapping[str, str | None] = {
    **dict.fromkeys(
        (
            *(
                "nnodes",
                "nproc-per-node",
                "rdzv-backend",
                "rdzv-endpoint",
                "rdzv-id",
                "rdzv-conf",
                "node-rank",
            ),
            *(
                "master-addr",
                "master-port",
                "max-restarts",
                "monitor-interval",
                "role",
                "log-dir",
                "redirects",
            ),
            *("tee", "r", "t", "local-addr", "start-method", "local-ranks-filter"),
        ),
        "kept",
    ),
    "standalone": None,
}
_OF_DEEPSPEED: Mapping[str, str | None] = {
    "num-gpus": "workers",
    "num-nodes": "nodes",
    **dict.fromkeys(("master-port", "master-addr"), _NOT_NEEDED),
    **dict.fromkeys(("no-local-rank", "module", "no-python"), None),
}


class NotReadError(Exception):
    """Flags that are not known here; the text says which."""


class Translated(NamedTuple):
    """A launcher's words for an agent.

    Attributes:
        workers: on all nodes together, as a word of the shell; empty for one per GPU.
        nodes: as a word of the shell; empty for one.
        rank: of the node, as the script gives it; empty without.
        flags: of the agent.
        environment: assignments for the workers.
        script: the words of the training script, and all behind them.
        has_local_rank: whether the launcher gives the script a flag with its local rank.
    """

    workers: str
    nodes: str
    rank: str
    flags: tuple[str, ...]
    environment: tuple[str, ...]
    script: str
    has_local_rank: bool = False


def of_accelerate(tail: str) -> Translated:
    """Return the words behind ``accelerate launch`` for an agent.

    Raises:
        NotReadError: a flag has accelerate set something up that is not known here.
    """
    given, switches, script = _flags(tail, _OF_ACCELERATE)
    if given.get("dynamo-backend", "no").lower() != "no":
        raise NotReadError("--dynamo_backend")
    environment = []
    if "mixed-precision" in given:
        environment.append(f"ACCELERATE_MIXED_PRECISION={given['mixed-precision']}")
    if "num-cpu-threads-per-process" in given:
        environment.append(f"OMP_NUM_THREADS={given['num-cpu-threads-per-process']}")
    return Translated(
        given.get("num-processes", ""),
        given.get("num-machines", ""),
        given.get("machine-rank", ""),
        (
            *(
                f"--{name}={given[name]}"
                for name in ("max-restarts", "monitor-interval", "role")
                if name in given
            ),
            *_kind_of(switches),
        ),
        tuple(environment),
        script,
    )


def of_deepspeed(tail: str) -> Translated:
    """Return the words behind ``deepspeed`` for an agent.

    Raises:
        NotReadError: as `of_accelerate`.
    """
    given, switches, script = _flags(tail, _OF_DEEPSPEED)
    return Translated(
        given.get("num-gpus", ""),
        given.get("num-nodes", ""),
        "",
        _kind_of(switches),
        (),
        script,
        has_local_rank="no-local-rank" not in switches,
    )


def of_torchrun(tail: str) -> tuple[str, str]:
    """Return the flags of torchrun as they stand, and the words from the training script on.

    Raises:
        NotReadError: a flag has another program than a script in Python started, or is not known.
    """
    _, _, script = _flags(tail, _OF_TORCHRUN)
    return " ".join(tail[: len(tail) - len(script)].replace("\\\n", " ").split()), script


def _kind_of(switches: set[str]) -> tuple[str, ...]:
    return (
        *(["--module"] if switches & {"module", "m"} else []),
        *(["--no-python"] if "no-python" in switches else []),
    )


def _flags(tail: str, known: Mapping[str, str | None]) -> tuple[dict[str, str], set[str], str]:
    """Return the flags ahead of a training script, those without a value, and the words from the script on.

    Raises:
        NotReadError: a word is none of the flags, or a variable may be several words.
    """
    given: dict[str, str] = {}
    switches: set[str] = set()
    words = list(_WORD.finditer(tail.replace("\\\n", "  ")))
    at = 0
    while at < len(words):
        word = words[at][0]
        if not word.startswith("-"):
            if word.startswith(("$", '"$')) and not re.search(r"\.py\b", word):
                raise NotReadError(f"what {word} holds")
            return given, switches, tail[words[at].start() :]
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name not in known:
            raise NotReadError(word.partition("=")[0])
        if known[name] is None:
            switches.add(name)
        else:
            if not equals:
                at += 1
                value = words[at][0] if at < len(words) else ""
            given[name] = value
        at += 1
    raise NotReadError("where its training script stands")
