"""The output of `scontrol show` of a fake Slurm, in the words of 22.05. Pure but for the time zone."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.clock import date_text
from hpc_elastic.testing.fake_slurm.cluster import endings, job_environ
from hpc_elastic.testing.fake_slurm.cluster.model import CLUSTER, Job, Node, Partition, State, World

_DAY = 86400
MAX_ARRAY = 1001


def stamp(at_s: float | None, none: str = "Unknown") -> str:
    """Return a time as Slurm writes it."""
    return none if at_s is None else date_text(at_s).replace(" ", "T")


def span(seconds: float | None) -> str:
    """Return a duration as scontrol writes it: ``00:07:00``."""
    if seconds is None:
        return "UNLIMITED"
    days, rest = divmod(int(max(0.0, seconds)), _DAY)
    text = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def short_span(seconds: float | None) -> str:
    """Return a duration as squeue writes it: ``7:00``."""
    if seconds is None:
        return "UNLIMITED"
    text = span(seconds)
    if seconds >= _DAY:
        return text
    hours, minutes, left = text.split(":")
    return f"{int(hours)}:{minutes}:{left}" if int(hours) else f"{int(minutes)}:{left}"


def run_time(job: Job, now: float) -> float:
    """Return how long a job has run or ran [s]."""
    if job.start_s is None:
        return 0.0
    until = job.end_s if not job.state.holds_nodes or job.state is State.COMPLETING else None
    return (now if until is None else until) - job.start_s


def nodes_of(job: Job) -> tuple[str, ...]:
    """Return the nodes of a job; of one that is COMPLETING those that still have processes of it."""
    if job.state is not State.COMPLETING:
        return job.nodes
    busy = {place.node for place in job.live}
    return tuple(node for node in job.nodes if node in busy)


def job_line(job: Job, user: Mapping[str, str], now: float) -> str:
    """Return ``scontrol show job --oneliner``."""
    fields = {**_who(job, user), **_times(job, now), **_where(job), **_files(job)}
    return " ".join(f"{name}={value}" for name, value in fields.items()) + " "


def priority(job: Job) -> int:
    """Return the priority of a job; that of one that is held is 0."""
    return 0 if job.held else 4294901760 - job.id % 1000


def _who(job: Job, user: Mapping[str, str]) -> dict[str, object]:
    array = {} if job.task is None else {"ArrayJobId": job.array, "ArrayTaskId": job.task}
    if job.task is not None and job.request.throttle:
        array["ArrayTaskThrottle"] = job.request.throttle
    return {
        "JobId": job.id,
        **array,
        "JobName": job.request.name,
        "UserId": f"{user['USER']}({user['UID']})",
        "GroupId": f"{user['USER']}({user['GID']})",
        "MCS_label": "N/A",
        "Priority": priority(job),
        "Nice": 0,
        "Account": CLUSTER,
        "QOS": "normal",
        "JobState": job.word,
        "Reason": job.reason,
        "Dependency": job.request.dependency or "(null)",
        "Requeue": int(job.request.requeue),
        "Restarts": job.restarts,
        **({"ExpeditedRequeue": "Yes"} if job.request.expedite else {}),
        "BatchFlag": 1,
        "Reboot": 0,
        "ExitCode": endings.exit_text(job.exit_code),
    }


def _times(job: Job, now: float) -> dict[str, object]:
    limit = job.request.limit_s
    return {
        "RunTime": span(run_time(job, now)),
        "TimeLimit": span(limit),
        "TimeMin": "N/A",
        "SubmitTime": stamp(job.submit_s),
        "EligibleTime": stamp(job.eligible_s),
        "AccrueTime": stamp(job.eligible_s),
        "StartTime": stamp(job.start_s),
        "EndTime": stamp(job.end_s),
        "Deadline": "N/A",
        "PreemptEligibleTime": stamp(job.start_s),
        "PreemptTime": stamp(job.preempt_s, "None"),
        "SuspendTime": "None",
        "SecsPreSuspend": 0,
        "LastSchedEval": stamp(now),
        "Scheduler": "Main",
    }


def _where(job: Job) -> dict[str, object]:
    request, nodes = job.request, nodes_of(job)
    pending = job.state is State.PENDING
    count = len(nodes) if nodes else request.min_nodes
    wished = f"{request.min_nodes}-{request.max_nodes}" if pending and not job.restarts else str(count)
    cpus = sum(share.cpus for share in job.shares.values()) or request.cpus_per_node * count
    gpus = sum(len(share.gpus) for share in job.shares.values()) or request.gpus_per_node * count
    found: dict[str, object] = {
        "Partition": request.partition,
        "AllocNode:Sid": "login:1",
        "ReqNodeList": job_environ.compress(request.nodelist) or "(null)",
        "ExcNodeList": job_environ.compress(request.exclude) or "(null)",
        "NodeList": job_environ.compress(nodes),
    }
    if nodes or job.nodes:
        found["BatchHost"] = job.nodes[0]
    found |= {
        "NumNodes": wished,
        "NumCPUs": cpus,
        "NumTasks": request.ntasks or count,
        "CPUs/Task": request.cpus_per_task or 1,
        "ReqB:S:C:T": "0:0:*:*",
        "TRES": f"cpu={cpus},node={count},billing={cpus}" + (f",gres/gpu={gpus}" if gpus else ""),
        "Features": "(null)",
        "OverSubscribe": "NO" if request.exclusive else "OK",
    }
    return found


def _files(job: Job) -> dict[str, object]:
    request = job.request
    found: dict[str, object] = {"Command": request.script_name, "WorkDir": request.directory}
    if request.comment:
        found["Comment"] = f"{request.comment} "
    out = request.output or ("slurm-%A_%a.out" if job.task is not None else "slurm-%j.out")
    found |= {"StdErr": request.error or out, "StdIn": request.stdin, "StdOut": out, "Power": ""}
    if request.gpus_per_node:
        found["TresPerNode"] = f"gres:gpu:{request.gpus_per_node}"
    return found


def node_word(world: World, node: Node) -> str:
    """Return the state of a node as ``scontrol show node`` writes it: ``MIXED+DRAIN``."""
    used = sum(job.shares[node.name].cpus for job in world.on_node(node.name) if node.name in job.shares)
    base = "IDLE" if not used else "ALLOCATED" if used >= world.settings.cpus else "MIXED"
    if node.is_down and not (world.settings.is_newer and _was_of_a_job_that_runs_on(world, node)):
        base = "DOWN"
    elif node.is_down:
        base = "MIXED"
    flags = "+DRAIN" if node.drained else ""
    if any(job.state is State.COMPLETING for job in world.on_node(node.name)):
        flags += "+COMPLETING"
    return base + flags + ("+NOT_RESPONDING" if not node.answers and node.is_down else "")


def _was_of_a_job_that_runs_on(world: World, node: Node) -> bool:
    """Whether a job has lost the node and runs on without it."""
    running = [job for job in world.jobs.values() if job.state is State.RUNNING]
    return any(node.name in row.nodes for job in running for row in job.rows if row.state == "RESIZING")


def node_line(world: World, node: Node) -> str:
    """Return ``scontrol show node --oneliner``."""
    jobs = [job.shares[node.name] for job in world.on_node(node.name) if node.name in job.shares]
    fields = {
        "NodeName": node.name,
        "Arch": "x86_64",
        "CPUAlloc": sum(share.cpus for share in jobs),
        "CPUTot": world.settings.cpus,
        "CPULoad": "0.00",
        "Gres": f"gpu:{world.settings.gpus}" if world.settings.gpus else "(null)",
        "NodeAddr": node.name,
        "NodeHostName": node.name,
        "Version": world.settings.full_version,
        "RealMemory": 4000,
        "State": node_word(world, node),
        "Partitions": ",".join(world.partitions),
    }
    if node.reason:
        fields["Reason"] = node.reason
    return " ".join(f"{name}={value}" for name, value in fields.items())


def partition_line(world: World, partition: Partition) -> str:
    """Return ``scontrol show partition --oneliner``."""
    return (
        f"PartitionName={partition.name} Default={'YES' if partition.name == 'low' else 'NO'} "
        f"GraceTime={partition.grace_s:.0f} MaxTime=UNLIMITED Nodes={job_environ.compress(world.nodes)} "
        f"PriorityTier={partition.tier} PreemptMode={partition.preempt} "
        f"State={'UP' if partition.up else 'DOWN'} TotalNodes={len(world.nodes)}"
    )


def config_text(world: World) -> str:
    """Return ``scontrol show config``, with the content of slurm.conf."""
    settings = world.settings
    parameters = [
        name
        for name, is_set in (
            ("preempt_send_user_signal", settings.user_signal),
            ("enable_expedited_requeue", settings.expedited_requeue),
        )
        if is_set
    ]
    fields = {
        "ClusterName": CLUSTER,
        "SlurmctldHost": "login",
        "SLURM_VERSION": settings.full_version,
        "ProctrackType": f"proctrack/{settings.tracker}",
        "PreemptMode": settings.preempt,
        "PreemptType": "preempt/partition_prio",
        "KillWait": f"{settings.kill_wait:.0f} sec",
        "SlurmdTimeout": f"{settings.slurmd_timeout:.0f} sec",
        "SlurmctldParameters": ",".join(parameters) or "(null)",
        "RequeueExit": ",".join(map(str, settings.requeue_exit)) or "(null)",
        "AuthInfo": f"cred_expire={settings.cred_expire:.0f}",
        "JobRequeue": 1,
        "MaxArraySize": MAX_ARRAY,
        "MinJobAge": "never forgotten",
    }
    return "\n".join(f"{name:<23} = {value}" for name, value in fields.items()) + "\n"


def oneline(line: str, *, one: bool) -> str:
    """Return a line of fields as scontrol prints it without ``--oneliner``, unless that is wanted."""
    return line if one else line.replace(" ", "\n   ", 1) if line.count(" ") == 1 else _folded(line)


def _folded(line: str) -> str:
    words, lines = line.strip().split(" "), [[]]  # type: ignore[var-annotated]
    for word in words:
        begins = len(lines[-1]) >= 4 or word.startswith("ExpeditedRequeue=")  # noqa: PLR2004 - fields on a line
        if "=" in word and begins:
            lines.append([])
        lines[-1].append(word)
    return "\n   ".join(" ".join(part) for part in lines) + "\n"
