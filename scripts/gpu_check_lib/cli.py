"""The command line of scripts/gpu-check."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gpu_check_lib.machine import gpus, query
from gpu_check_lib.run import PATIENCE

DESCRIPTION = """\
Try hpc_elastic on the GPUs of this machine, with the Python that has PyTorch for CUDA: counts, warm workers,
checkpoints, states that are rescued, ends, errors of CUDA, samples of the GPUs, and the examples. Two ranks
share one GPU. Each check is a process of its own with a limit of time, and prints one line of JSON; a table
follows. The exit code is 1 if a check has failed, and 2 if there is no GPU. It takes about five minutes.
"""
KILL_S = 5.0
SETTINGS = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the same bits each time
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_DEBUG": "WARN",
}


class Check(NamedTuple):
    """One check.

    Attributes:
        module: where it is.
        limit_s: for it [s].
    """

    module: str
    limit_s: float


CHECKS = {
    "counts": Check("devices", 60),
    "refused": Check("warm", 60),
    "same": Check("saves", 60),
    "blocking": Check("saves", 90),
    "auto": Check("saves", 60),
    "cost": Check("rescue", 60),
    "keeps": Check("rescue", 90),
    "torn": Check("rescue", 60),
    "nccl": Check("rescue", 90),
    "large": Check("rescue", 90),
    "next_step": Check("warm", 120),
    "ends": Check("devices", 60),
    "stop": Check("devices", 60),
    "sampled": Check("devices", 60),
    "errors": Check("devices", 60),
    "examples": Check("examples", 110),
}


def main(argv: list[str]) -> int:
    """Run the checks, print their results, and return the exit code."""
    options = _parser().parse_args(argv)
    if options.inside:
        return _inside(options.inside, options.out)
    if not gpus() and not options.without_gpu:
        print(
            "gpu-check: nvidia-smi finds no GPU on this machine, so there is nothing to try", file=sys.stderr
        )
        return 2
    print(json.dumps({"machine": _machine()}), flush=True)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        out = options.out or Path(scratch)
        for name in options.check or CHECKS:
            if name not in options.skip:
                results[name] = _outside(name, CHECKS[name], out, options.patience)
                print(json.dumps({name: results[name]}), flush=True)
    print(_table(results))
    if options.json:
        options.json.write_text(json.dumps({"machine": _machine(), "checks": results}, indent=1) + "\n")
    return int(any(not result["ok"] for result in results.values()))


def _machine() -> dict[str, Any]:
    words = query("gpu=name,driver_version,memory.total")
    return {"gpus": words, "python": platform.python_version(), "cpus": os.cpu_count()}


def _outside(name: str, check: Check, out: Path, patience: float) -> dict[str, Any]:
    """Run one check in a process of its own, of which nothing is left afterwards."""
    place = out / name
    place.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    argv = [sys.executable, "-m", "gpu_check_lib.cli", "--inside", name, "--out", str(place)]
    here = Path(__file__).resolve().parents[1]
    path = f"{here}{os.pathsep}{here.parent}"
    env = {**os.environ, "PYTHONPATH": path, PATIENCE: str(patience), **SETTINGS}
    with (place / "check.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True, env=env)
        try:
            code = process.wait(check.limit_s * patience)
        except subprocess.TimeoutExpired:
            code = _ended(process)
        except KeyboardInterrupt:
            _ended(process)
            raise
    found = place / "result.json"
    result = json.loads(found.read_text()) if found.exists() else {"ok": False}
    if not found.exists():
        result["wrong"] = f"exit code {code}: {(place / 'check.log').read_text(errors='replace')[-1500:]}"
    return {**result, "took_s": round(time.monotonic() - began, 1)}


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Have a check end what it has started, or kill it."""
    process.terminate()
    try:
        return process.wait(KILL_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _inside(name: str, place: Path) -> int:
    """Make one check, and write its result beside its files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    module = importlib.import_module(f"gpu_check_lib.{CHECKS[name].module}")
    check: Callable[[Path], dict[str, Any]] = getattr(module, name)
    result: dict[str, Any]
    try:
        result = {"ok": True, "facts": check(place / "runs")}
    except BaseException as error:  # noqa: BLE001 - it is the result
        traceback.print_exc()
        result = {"ok": False, "wrong": f"{type(error).__name__}: {error}"}
    (place / "result.json").write_text(json.dumps(result))
    return int(not result["ok"])


def _table(results: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'check':<10} {'result':<7} {'time':>6}  what"]
    for name, result in results.items():
        module = importlib.util.find_spec(f"gpu_check_lib.{CHECKS[name].module}")
        said = _first_line(module.origin or "", name) if module is not None else ""
        what = said if result["ok"] else result["wrong"].splitlines()[0][:100]
        verdict = "ok" if result["ok"] else "FAILED"
        lines.append(f"{name:<10} {verdict:<7} {result['took_s']:>4.0f} s  {what}")
    return "\n".join(lines)


def _first_line(path: str, name: str) -> str:
    """Return the first line of a function's docstring, without importing its module."""
    text = Path(path).read_text().partition(f"def {name}(")[2]
    return text.partition('"""')[2].partition('"""')[0].strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-check", description=DESCRIPTION)
    parser.add_argument("check", nargs="*", choices=[*CHECKS, []], help="default: all")
    parser.add_argument("--skip", nargs="+", default=[], choices=CHECKS, help="leave these out")
    parser.add_argument("--out", type=Path, help="keep all files there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument(
        "--patience", type=float, default=1.0, metavar="N", help="times longer, on a busy machine"
    )
    parser.add_argument("--without-gpu", action="store_true", help="try what can be tried on CPUs")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
