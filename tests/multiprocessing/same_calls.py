"""Make the same calls of one package, torch's or ours, and print what came of them as JSON.

Usage: same_calls.py PACKAGE DIRECTORY
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

Found = dict[str, Any]


LIMIT_S = 100.0


def add(first: int, second: int) -> int:
    """Return the sum."""
    return first + second


def size(count: int) -> bytes:
    """Return so many bytes."""
    return bytes(count)


def boom(text: str) -> None:
    """Raise."""
    raise ValueError(text)


def shout(text: str) -> str:
    """Print to both streams."""
    print(text)  # noqa: T201
    print(text.upper(), file=sys.stderr)  # noqa: T201
    return os.environ["LOCAL"]


class Calls:
    """The calls, one method each; what differs by design is left out here and tested elsewhere."""

    def __init__(self, package: str, directory: str) -> None:
        self.base = import_module(package)
        self.api = import_module(f"{package}.api")
        self.errors = import_module(f"{package}.errors")
        self.tail_log = import_module(f"{package}.tail_log")
        self.redirects = import_module(f"{package}.redirects")
        self.handler = import_module(f"{package}.subprocess_handler")
        self.directory = directory
        self.count = 0

    def folder(self) -> str:
        """Return a new directory."""
        self.count += 1
        path = os.path.join(self.directory, str(self.count))
        os.makedirs(path)
        return path

    def specs(self, **more: Any) -> Any:
        """Return log specs in a new directory."""
        return self.base.DefaultLogsSpecs(log_dir=self.folder(), **more)

    def start(self, entrypoint: Any, args: dict[int, Any], **more: Any) -> Any:
        """Start processes."""
        specs = more.pop("specs", None) or self.specs()
        envs = more.pop("envs", None) or {rank: {} for rank in args}
        return self.base.start_processes("job", entrypoint, args, envs, specs, **more)

    def run(self, entrypoint: Any, args: dict[int, Any], **more: Any) -> Any:
        """Start processes and wait for their end."""
        context = self.start(entrypoint, args, **more)
        result = context.wait(60, period=0.02)
        context.close()
        return result

    def values(self) -> Found:
        """Return values of functions, by start method."""
        args = {0: (1, 2), 1: (3, 4)}
        found = {
            method: self.run(add, args, start_method=method).return_values for method in ("spawn", "fork")
        }
        big = self.run(size, {0: (3_000_000,), 1: (2,)}, start_method="fork").return_values
        return {**found, "big": [len(big[rank]) for rank in sorted(big)]}

    def function_failure(self) -> Found:
        """A function that raises."""
        result = self.run(boom, {0: ("bad",)}, specs=self.specs(redirects=self.base.Std.ALL))
        failure = result.failures[0]
        body = failure.message
        return {
            "failed": result.is_failed(),
            "code": failure.exitcode,
            "message": body["message"],
            "last": body["extraInfo"]["py_callstack"].strip().splitlines()[-1],
            "time": re.sub(r"\d", "9", body["extraInfo"]["timestamp"]),
            "same": failure.error_file_data["message"] == body,
            "name": os.path.basename(failure.error_file),
            "values": result.return_values,
        }

    def program_failure(self) -> Found:
        """A program that exits with a code."""
        failure = self.run("sh", {0: ("-c", "exit 7")}).failures[0]
        return {
            "code": failure.exitcode,
            "file": failure.error_file,
            "data": failure.error_file_data,
            "words": failure.message.split(" see")[0][:19],
            "signal": failure.signal_name(),
        }

    def program_killed(self) -> Found:
        """A program that is ended by a signal."""
        failure = self.run("sh", {0: ("-c", "kill -9 $$")}).failures[0]
        words = failure.message.replace(str(failure.pid), "PID")
        return {"code": failure.exitcode, "words": words, "signal": failure.signal_name()}

    def files(self) -> Found:
        """Where output goes and what is in it."""
        std = self.base.Std
        specs = self.specs(redirects={0: std.ALL}, tee={1: std.OUT})
        args: dict[int, Any] = {rank: (f"text{rank}",) for rank in range(3)}
        env = {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "3"}
        envs = {rank: {**env, "LOCAL": f"{rank}"} for rank in range(3)}
        result = self.run(shout, args, envs=envs, specs=specs, start_method="fork")
        root = Path(specs.root_log_dir)
        names = sorted(
            re.sub(r"^run_\w+/", "run/", str(path.relative_to(root)))
            for path in root.rglob("*")
            if path.name != "run" and not path.name.startswith("run_")
        )
        texts = {rank: Path(path).read_text() for rank, path in result.stdouts.items() if path}
        errors = {rank: Path(path).read_text() for rank, path in result.stderrs.items() if path}
        return {"names": names, "out": texts, "err": errors, "values": result.return_values}

    def chosen_lines(self) -> Found:
        """Files of chosen lines, and ranks that the console does not show."""
        std = self.base.Std
        specs = self.specs(tee=std.ALL, local_ranks_filter={0, 1})
        text = "print('loss 1'); print('noise'); print('acc 2')"
        args = dict.fromkeys(range(3), ("-c", text))
        self.run(sys.executable, args, specs=specs, duplicate_stdout_filters=["loss", "acc"])
        path = next(Path(specs.root_log_dir).rglob("filtered_stdout.log"))
        others = list(Path(specs.root_log_dir).rglob("filtered_stderr.log"))
        return {"lines": sorted(path.read_text().splitlines()), "others": len(others)}

    def prefixes(self) -> Found:
        """Prefixes of teed lines that the caller chose; what is printed is compared by the test."""
        specs = self.specs(tee=self.base.Std.OUT)
        args = {rank: ("-c", f"print('tee {rank}')") for rank in range(2)}
        self.run(sys.executable, args, specs=specs, log_line_prefixes={1: "<one> "})
        return {}

    def refusals(self) -> Found:
        """What is refused, and how."""
        taken = os.path.join(self.folder(), "file")
        Path(taken).touch()

        def twice() -> None:
            context = self.start("true", {0: ()})
            try:
                context.start()
            finally:
                context.close()

        tries: dict[str, Callable[[], object]] = {
            "args": lambda: self.start("true", {0: (), 2: ()}, envs={0: {}, 1: {}}),
            "envs": lambda: self.start("true", {0: (), 1: ()}, envs={0: {}}),
            "program": lambda: self.start("no-such-program", {0: ()}),
            "log_dir": lambda: self.base.DefaultLogsSpecs(log_dir=taken),
            "std": lambda: self.base.Std.from_str("4"),
            "method": lambda: self.start(add, {0: (1, 2)}, start_method="thread"),
            "stream": lambda: self.redirects.redirect("stdin", taken).__enter__(),
            "twice": twice,
        }
        return {name: _refusal(attempt) for name, attempt in tries.items()}

    def small_things(self) -> Found:
        """Parsing, mapping, empty results."""
        std, base = self.base.Std, self.base
        texts = ("0", "1", "2", "3", "0:3,1:0,2:1", "0:1,0:2")
        dest = base.LogsDest()
        return {
            "std": [repr(std.from_str(text)).replace("Std", "") for text in texts],
            "map": repr(base.to_map({1: std.OUT, 7: std.ERR}, 2)) + repr(base.to_map(std.ALL, 2)),
            "dest": {name: getattr(dest, name) for name in ("stdouts", "tee_stderrs", "filtered_stdout")},
            "result": base.RunProcsResult().is_failed(),
            "devnull": base.DefaultLogsSpecs(log_dir=os.devnull, redirects=std.ALL).root_log_dir,
            "equal": base.DefaultLogsSpecs(log_dir="/tmp") == base.DefaultLogsSpecs(log_dir="/tmp"),
            "names": sorted(name for name in self.api.__all__ if hasattr(base, name)),
        }

    def recorded(self) -> Found:
        """What `record` writes, lets pass and hands up."""
        path = os.path.join(self.folder(), "error.json")
        os.environ["TORCHELASTIC_ERROR_FILE"] = path
        found: Found = {
            "exit 0": self.errors.record(lambda: sys.exit(0))(),
            "value": self.errors.record(add)(1, 2),
        }
        found["raised"] = _refusal(lambda: self.errors.record(boom)("text"))
        written = json.loads(Path(path).read_text())["message"]
        found["message"] = written["message"]
        found["keys"] = sorted({*written, *written["extraInfo"]} - {"time_s"})
        failure = self.errors.ProcessFailure(0, 9, -15, path)
        os.environ["TORCHELASTIC_ERROR_FILE"] = os.path.join(self.folder(), "parent.json")

        def launch() -> None:
            raise self.errors.ChildFailedError("train", {4: failure})

        found["launch"] = _refusal(self.errors.record(launch))[0]
        handed_up = json.loads(Path(os.environ.pop("TORCHELASTIC_ERROR_FILE")).read_text())["message"]
        found["handed up"] = (handed_up["message"], handed_up["errorCode"])
        return found

    def failures(self) -> Found:
        """What is made of error files, and which failure is the first."""
        folder = self.folder()
        files = {}
        for name, time_s in (("a", 1700000005), ("b", 1700000002)):
            files[name] = os.path.join(folder, name)
            text = json.dumps(
                {
                    "message": {
                        "message": name,
                        "extraInfo": {"py_callstack": f"TB {name}", "timestamp": str(time_s)},
                    }
                }
            )
            Path(files[name]).write_text(text)
        files["flat"] = os.path.join(folder, "flat")
        Path(files["flat"]).write_text(json.dumps({"message": "old", "timestamp": 1700000009}))
        made = {rank: self.errors.ProcessFailure(rank, 9, 1, files[name]) for rank, name in enumerate(files)}
        error = self.errors.ChildFailedError("train", made)
        return {
            "first": error.get_first_failure()[0],
            "times": [failure.timestamp for failure in made.values()],
            "messages": [failure.message for failure in made.values()],
            "iso": made[0].timestamp_isoformat(),
            "root cause": "Root Cause (first observed failure):" in str(error),
            "headline": "train FAILED" in str(error),
            "traceback": str(error).index("TB b") > str(error).index("Root Cause"),
        }

    def streams(self) -> Found:
        """Redirecting the own streams, and following logs."""
        path = os.path.join(self.folder(), "out")
        with self.redirects.redirect_stdout(path):
            print("python")  # noqa: T201
            os.system("echo child")  # noqa: S605
        log = os.path.join(self.folder(), "log")
        Path(log).write_bytes(b"a\n\xffb\n")
        out = io.StringIO()
        tail = self.tail_log.TailLog("t", {0: log}, out).start()
        tail.stop()
        return {
            "out": sorted(Path(path).read_text().splitlines()),
            "tail": out.getvalue(),
            "end": tail.stopped(),
        }

    def one_program(self) -> Found:
        """The handler of one program."""
        out = os.path.join(self.folder(), "out")
        handler = self.handler.get_subprocess_handler(
            "sh", ("-c", "echo $0 $A; sleep 1000"), {"A": "x"}, out, "", 3
        )
        while not Path(out).read_text():
            pass
        handler.close(signal.SIGTERM)
        return {"rank": handler.local_rank_id, "code": handler.proc.wait(120), "out": Path(out).read_text()}


def _refusal(attempt: Callable[[], object]) -> list[str]:
    """Return the built-in kind of the error that an attempt ends in, and the first line of its text."""
    try:
        attempt()
    except Exception as error:  # noqa: BLE001
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
        text = str(error).split("\n")[0]
        return [kinds[0] if kinds[0] != "Exception" else type(error).__name__, text]
    return []


def main(package: str, directory: str) -> None:
    """Make all calls; one that hangs is shown on stderr."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    calls = Calls(package, directory)
    names = [
        name
        for name in vars(Calls)
        if not name.startswith("_") and name not in {"folder", "specs", "start", "run"}
    ]
    found = {name: getattr(calls, name)() for name in names}
    Path(directory, "found.json").write_text(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
