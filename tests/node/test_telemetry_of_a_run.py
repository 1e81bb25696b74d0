"""Metrics and events of real agents, as their users set them up in the environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.metrics import api
from tests.node.agents import Agents, MakeAgents, crash, wait_for

STATUS = "torchelastic.worker.status."

OF_THE_SITE = """
from hpc_elastic import events, metrics

class Raises(metrics.MetricHandler):
    def emit(self, data):
        raise RuntimeError("the site's own")

class AlsoRaises(events.EventHandler):
    def record(self, event):
        raise RuntimeError("the site's own, too")
"""


def lines(directory: Path, stem: str) -> list[list[dict[str, Any]]]:
    """Return the lines that each agent has written, by file."""
    files = sorted(directory.glob(f"{stem}-*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def run_two(agents: Agents, environ: dict[str, str], *flags: str) -> list[str]:
    """Run two nodes with one restart to their end; return what they print."""
    for node in (0, 1):
        agents.start(node, "--nnodes", "2", "--max-restarts", "1", *flags, env=environ)
    outputs = [agents.output(node) for node in (0, 1)]
    assert [0, 0] == [agents.code(node) for node in (0, 1)]
    return outputs


@pytest.fixture
def one_crash(make: MakeAgents) -> Agents:
    """Agents of workers of which one fails in the first round."""
    return make(crash("1", "sys.exit(3)"))


def test_json_lines(one_crash: Agents, tmp_path: Path) -> None:
    """Each agent writes files of its own; both tell of both rounds and of the end."""
    place = "jsonl:{run_dir}/telemetry"
    run_two(one_crash, {"HPC_ELASTIC_METRICS": place, "HPC_ELASTIC_EVENTS": place})
    written = Path(one_crash.paths.root, "telemetry")
    for told in lines(written, "events"):
        names = [event["name"].removeprefix(STATUS) for event in told]
        assert 2 == names.count("RENDEZVOUS")
        assert 4 == names.count("START")
        assert ["SUCCEEDED"] * 3 == names[-3:]
        assert {"2"} == {
            str(json.loads(event["metadata"]["metadata"])["group_world_size"]) for event in told[2:]
        }
    for put in lines(written, "metrics"):
        last = {metric["name"]: metric["value"] for metric in put}
        assert (1, 0) == (
            last["workers.default.run_success_with_retries"],
            last["workers.default.remaining_restarts"],
        )
        assert 1 == last["SimpleElasticAgent._restart_workers.success"]
        assert {"torchelastic"} == {metric["group"] for metric in put}
    ranks = [
        sorted(event["metadata"]["global_rank"] for event in told if event["name"] == f"{STATUS}SUCCEEDED"
               and event["source"] == "WORKER")
        for told in lines(written, "events")
    ]  # fmt: skip
    assert [[0, 1], [2, 3]] == sorted(ranks)


def test_prometheus(one_crash: Agents, tmp_path: Path) -> None:
    """One file per agent for node_exporter, which is whole at the end and while the workers run."""
    environ = {"HPC_ELASTIC_METRICS": f"prometheus:{tmp_path}/{{node}}.prom"}
    run_two(one_crash, environ)
    files = sorted(tmp_path.glob("*.prom"))
    assert 2 == len(files)
    for file in files:
        text = file.read_text()
        (labels,) = set(re.findall(r"workers_default_succeeded\{([^}]*)\} 1.0", text))
        assert f'node="{file.stem}"' in labels
        assert 'run_id="' in labels
        assert f"hpc_elastic_SimpleElasticAgent__rendezvous_success_total{{{labels}}} 2.0" in text
        assert f"hpc_elastic_workers_default_healthy{{{labels}}} 0.0" in text


DASHBOARD = Path(__file__).parents[2] / "docs" / "how-to" / "grafana.json"


TICKS = """
from hpc_elastic import worker
step = 0
while step < 9 or len(os.listdir(os.path.join(worker.run_dir(), "gpus"))) < 2:
    step += 1
    worker.tick(step)
    time.sleep(0.05)
"""


def test_the_dashboard_shows_metrics_that_agents_write(make: MakeAgents, tmp_path: Path) -> None:
    """Each panel of the dashboard for Grafana, and each of its labels and variables.

    The agents sample GPUs by a program of the test, and workers tell their steps.
    """
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, GPU-a, 90, 1024, 81920'\n")
    program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environ["HPC_ELASTIC_METRICS"] = f"prometheus:{tmp_path}/{{node}}.prom"
    agents = make(crash("1", "sys.exit(3)", TICKS))
    os.makedirs(agents.paths.gpus, 0o700)
    run_two(agents, environ, "--sample-gpus", "0.1")
    written = "".join(file.read_text() for file in sorted(tmp_path.glob("*.prom")))
    samples = dict(re.findall(r"^(\w+)\{([^}]*)\}", written, re.MULTILINE))
    assert 2 == len(re.findall(r'gpu_busy\{gpu="0",.*\} 90.0', written))
    assert re.search(r"run_goodput_on_nodes\{.*\} 0\.[0-9]", written)
    found = json.loads(DASHBOARD.read_text())
    variables = {one["name"]: one for one in found["templating"]["list"]}
    queries = [one["query"] for one in variables.values() if one["type"] == "query"]
    queries += [target["expr"] for panel in found["panels"] for target in panel["targets"]]
    assert len(queries) >= len(found["panels"]) + 2
    for query in queries:
        names = re.findall(r"hpc_elastic_\w+", query)
        assert names
        labels = set(re.findall(r"(\w+)=", samples[names[0]]))
        assert set(names) <= set(samples)
        assert set(re.findall(r"(\w+)=~", query)) <= labels
        assert set(re.findall(r"\$(\w+)", query)) <= set(variables)
        assert not query.startswith("label_values") or query.rpartition(", ")[2].strip(")") in labels


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    """It has the fields of Grafana's schema; panels lie side by side in 24 columns."""
    found = json.loads(DASHBOARD.read_text())
    assert {"title": str, "uid": str, "schemaVersion": int, "panels": list, "templating": dict} == {
        name: type(found[name]) for name in ("title", "uid", "schemaVersion", "panels", "templating")
    }
    panels = found["panels"]
    assert len(panels) == len({panel["id"] for panel in panels})
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in {"stat", "timeseries"}
        assert {"type": "prometheus", "uid": "${datasource}"} == panel["datasource"]
        assert len(panel["targets"]) == len({target["refId"] for target in panel["targets"]})
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_prometheus_while_the_workers_run(make: MakeAgents, tmp_path: Path) -> None:
    """What was put last is in the file though nothing is put for long."""
    agents = make("import time; time.sleep(600)")
    agents.start(0, env={"HPC_ELASTIC_METRICS": f"prometheus:{tmp_path}/x.prom"})
    agents.wait_workers(1, 2)
    file = tmp_path / "x.prom"
    healthy = re.compile(r"workers_default_healthy\{[^}]*\} 1.0")
    wait_for(lambda: file.exists() and bool(healthy.search(file.read_text())), "the state of the workers")
    wait_for(lambda: "_initialize_workers_success" in file.read_text(), "the last metric")


def test_handlers_of_the_user_that_raise(one_crash: Agents, tmp_path: Path) -> None:
    """They are the user's own Python, and cannot hurt the run."""
    (tmp_path / "of_the_site.py").write_text(OF_THE_SITE)
    environ = {
        "PYTHONPATH": str(tmp_path),
        "HPC_ELASTIC_METRICS": "of_the_site:Raises",
        "HPC_ELASTIC_EVENTS": "of_the_site:AlsoRaises",
    }
    for output in run_two(one_crash, environ):
        assert 1 == output.count("the agent's metrics are not all told: RuntimeError: the site's own\n")


def test_a_place_that_cannot_be_used(make: MakeAgents) -> None:
    """Nothing is started; one error names it."""
    agents = make("")
    agents.start(0, env={"HPC_ELASTIC_EVENTS": "kafka"})
    assert "HPC_ELASTIC_EVENTS=kafka cannot be used" in agents.output(0)
    assert 2 == agents.code(0)
    assert [] == agents.rounds()


def test_the_hook_of_a_site(tmp_path: Path) -> None:
    """A module ``static_init`` beside our own metrics configures what the site wants for every run."""
    package = tmp_path / "hpc_elastic"
    shutil.copytree(Path(api.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "metrics" / "static_init.py").write_text(
        "from hpc_elastic.metrics.api import configure\n"
        "from hpc_elastic.metrics.file_handlers import CsvMetricHandler\n"
        "def initialize_metrics(cfg=None):\n"
        f"    configure(CsvMetricHandler({str(tmp_path / 'site')!r}))\n"
    )
    command = [sys.executable, "-m", "hpc_elastic", "run", "--run-dir", "run", "--no-python", "true"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (file,) = (tmp_path / "site").iterdir()
    assert "torchelastic,workers.default.run_total,1" in file.read_text()


def test_without_listeners_and_services_nothing_of_them_is_imported(tmp_path: Path) -> None:
    """A thousand agents read their modules from a shared file system at the same moment."""
    command = [sys.executable, "-X", "importtime", "-m", "hpc_elastic", "run", "--run-dir", "run"]
    environ = {name: value for name, value in os.environ.items() if "ELASTIC" not in name}
    done = subprocess.run(
        [*command, "--no-python", "true"],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(Path(api.__file__).parents[2])},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "hpc_elastic.node.agent" in imported
    rare = ("hpc_elastic.metrics", "hpc_elastic.events", "hpc_elastic.timer", "logging", "http")
    assert set() == {name for name in imported if name.startswith(rare) or "node_services" in name}
