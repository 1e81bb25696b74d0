"""Host lists, and the environment of batch scripts and tasks, as Slurm 22.05 writes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hpc_elastic.testing.fake_slurm.cluster.model import CLUSTER, Job, Step, Task, World

GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")


def exported(environ: Mapping[str, str], wish: str) -> dict[str, str]:
    """Return the part of an environment that ``--export`` passes on.

    Args:
        environ: the environment of sbatch or srun.
        wish: ``ALL``, ``NONE``, or names and ``NAME=value``, separated by commas.
    """
    words = wish.split(",") if wish else ["ALL"]
    if words == ["NONE"]:
        words = ["HOME", "USER", "LOGNAME", "SHELL", "PATH"]
    found = dict(environ) if "ALL" in words else {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
    kept = "SLURM_CONF"
    if not any(name.startswith("SLURM_JOB") for name in found):
        return found
    return {name: value for name, value in found.items() if name == kept or not name.startswith("SLURM")}


def of_job(world: World, job: Job, user: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every process of a job has.

    Args:
        world: the cluster.
        job: the job; it has nodes.
        user: USER, UID and GID of the submitting user.
    """
    request, count = job.request, len(job.nodes)
    tasks = request.ntasks or (request.tasks_per_node or 1) * count
    per_node = repeated([request.tasks_per_node or -(-tasks // count)] * count)
    found = {
        "SLURM_CLUSTER_NAME": CLUSTER,
        "SLURM_JOB_ACCOUNT": CLUSTER,
        "SLURM_JOB_CPUS_PER_NODE": repeated(share.cpus for share in job.shares.values()),
        "SLURM_JOB_GID": user["GID"],
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_NAME": request.name,
        "SLURM_JOB_NODELIST": compress(job.nodes),
        "SLURM_NODELIST": compress(job.nodes),
        "SLURM_JOB_NUM_NODES": str(count),
        "SLURM_NNODES": str(count),
        "SLURM_JOB_PARTITION": request.partition,
        "SLURM_JOB_QOS": "normal",
        "SLURM_JOB_UID": user["UID"],
        "SLURM_JOB_USER": user["USER"],
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_SUBMIT_DIR": request.submit_directory,
        "SLURM_SUBMIT_HOST": "login",
        "SLURM_TASKS_PER_NODE": per_node,
    }
    found |= _asked_for(job, tasks) | _of_array(world, job)
    return found | _since_22(job) if world.settings.is_newer else found


_YEAR_S = 365 * 86400.0  # Slurm's count for no limit


def _since_22(job: Job) -> dict[str, str]:
    """Return the variables that Slurm 22.05 does not have."""
    start_s = job.start_s or 0.0
    end_s = start_s + _YEAR_S if job.end_s is None else job.end_s
    found = {"SLURM_JOB_START_TIME": str(int(start_s)), "SLURM_JOB_END_TIME": str(int(end_s))}
    if job.request.cpus_per_task:
        found["SLURM_TRES_PER_TASK"] = f"cpu={job.request.cpus_per_task}"
    return found


def _asked_for(job: Job, tasks: int) -> dict[str, str]:
    request = job.request
    found: dict[str, str] = {}
    if request.ntasks or request.tasks_per_node:
        found |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    if request.tasks_per_node:
        found["SLURM_NTASKS_PER_NODE"] = str(request.tasks_per_node)
    if request.cpus_per_task:
        found["SLURM_CPUS_PER_TASK"] = str(request.cpus_per_task)
    if request.gpus_per_node:
        found["SLURM_GPUS_PER_NODE"] = str(request.gpus_per_node)
    if request.gpus_per_task:
        found["SLURM_GPUS_PER_TASK"] = str(request.gpus_per_task)
    if job.restarts:
        found["SLURM_RESTART_COUNT"] = str(job.restarts)
    return found


def _of_array(world: World, job: Job) -> dict[str, str]:
    if job.task is None:
        return {}
    tasks = sorted(one.task for one in world.tasks_of(job.array) if one.task is not None)
    step = tasks[1] - tasks[0] if len(tasks) > 1 else 1
    return {
        "SLURM_ARRAY_JOB_ID": str(job.array),
        "SLURM_ARRAY_TASK_ID": str(job.task),
        "SLURM_ARRAY_TASK_COUNT": str(len(tasks)),
        "SLURM_ARRAY_TASK_MIN": str(tasks[0]),
        "SLURM_ARRAY_TASK_MAX": str(tasks[-1]),
        "SLURM_ARRAY_TASK_STEP": str(step),
    }


def on_node(job: Job, node: str) -> dict[str, str]:
    """Return the variables that tell a process of a job about its node."""
    share = job.shares[node]
    found = {"SLURMD_NODENAME": node, "SLURM_CPUS_ON_NODE": str(share.cpus), "SLURM_TOPOLOGY_ADDR": node}
    found["SLURM_TOPOLOGY_ADDR_PATTERN"] = "node"
    if share.gpus:
        devices = ",".join(map(str, share.gpus))
        found |= {"SLURM_JOB_GPUS": devices, "SLURM_GPUS_ON_NODE": str(len(share.gpus))}
        found |= dict.fromkeys(GPU_VARIABLES, devices)
    return found


def of_script(world: World, job: Job, user: Mapping[str, str]) -> dict[str, str]:
    """Return Slurm's variables for a batch script."""
    place = {"SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_GTIDS": "0"}
    return {**of_job(world, job, user), **on_node(job, job.nodes[0]), **place, "SLURM_PRIO_PROCESS": "0"}


def of_task(world: World, job: Job, step: Step, task: Task, user: Mapping[str, str]) -> dict[str, str]:
    """Return Slurm's variables for one task, beside srun's environment."""
    counts = [sum(1 for one in step.tasks if one.node == node) for node in step.nodes]
    mine = [str(one.rank) for one in step.tasks if one.node == task.node]
    found = {
        "SLURM_STEP_ID": str(step.number),
        "SLURM_STEPID": str(step.number),
        "SLURM_STEP_NODELIST": compress(step.nodes),
        "SLURM_STEP_NUM_NODES": str(len(step.nodes)),
        "SLURM_STEP_NUM_TASKS": str(len(step.tasks)),
        "SLURM_STEP_TASKS_PER_NODE": repeated(counts),
        "SLURM_NTASKS": str(len(step.tasks)),
        "SLURM_NPROCS": str(len(step.tasks)),
        "SLURM_NODEID": str(step.nodes.index(task.node)),
        "SLURM_PROCID": str(task.rank),
        "SLURM_LOCALID": str(task.local),
        "SLURM_GTIDS": ",".join(mine),
        "SLURM_DISTRIBUTION": "cyclic",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_UMASK": "0022",
    }
    share = job.shares[task.node]
    if share.gpus:
        first = task.local * step.gpus_per_task
        mine_only = share.gpus[first : first + step.gpus_per_task] if step.gpus_per_task else share.gpus
        devices = ",".join(map(str, mine_only))
        found |= {"SLURM_STEP_GPUS": devices, **dict.fromkeys(GPU_VARIABLES, devices)}
    base = {**of_job(world, job, user), **on_node(job, task.node)}
    keep = ("SLURM_TASKS_PER_NODE", "SLURM_NODELIST", "SLURM_NNODES")
    return {
        **{name: value for name, value in base.items() if name not in keep},
        **found,
        **_of_step(step, counts),
    }


def _of_step(step: Step, counts: Sequence[int]) -> dict[str, str]:
    """Return the old names that speak of the step inside of one."""
    return {
        "SLURM_NNODES": str(len(step.nodes)),
        "SLURM_NODELIST": compress(step.nodes),
        "SLURM_TASKS_PER_NODE": repeated(counts),
    }


def compress(names: Iterable[str]) -> str:
    """Return names as ``node[1-3,7]``; names of different kinds are separated by commas."""
    groups: dict[tuple[str, int], list[int]] = {}
    parts: list[str | tuple[str, int]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match is None:
            parts.append(name)
            continue
        padded = len(match[2]) if match[2].startswith("0") else 0
        key = (match[1], padded)
        if key not in groups:
            groups[key] = []
            parts.append(key)
        groups[key].append(int(match[2]))
    return ",".join(part if isinstance(part, str) else _group(*part, groups[part]) for part in parts)


def _group(prefix: str, width: int, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    return f"{prefix}[{ranges(numbers, width)}]"


def ranges(numbers: Iterable[int], width: int = 0) -> str:
    """Return numbers as ``1-3,7``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(
        f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"
        for first, last in spans
    )


def repeated(counts: Iterable[int]) -> str:
    """Return counts per node as ``2(x3),1``."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in runs)
