"""The settings that only a command line of ``hpc-elastic finish`` has. Pure."""

from __future__ import annotations

from hpc_elastic.settings.setting import BUDGET, NUMBER, PATH, TEXT, FinishFlag, Written, rows_of, setting
from hpc_elastic.settings.table import OF_FINISH


class FinishSettings:
    """The arguments of ``finish`` in a job script beside the settings of the job."""

    run_dir = setting(PATH, None, "Run directory", to=FinishFlag())
    srun_exit_code = setting(NUMBER, 0, "Exit code of srun", to=FinishFlag(), written=Written(metavar="RC"))
    relaunch = setting(
        NUMBER, 0, "How often srun was started again", to=FinishFlag(), written=Written(metavar="K")
    )
    max_relaunch = setting(
        BUDGET, 3, "How often srun may be started again in one start of the job", to=FinishFlag()
    )
    job_info = setting(
        TEXT,
        None,
        "Output of scontrol show job -o, where finish has no Slurm commands; it then ends with 81 for "
        "scontrol requeue and with 82 for scontrol requeuehold",
        to=FinishFlag(),
    )
    launch_failure = setting(TEXT, "", "The line of the job script that failed before srun", to=FinishFlag())
    launch_failure_in = setting(
        TEXT, "", "The part of the script that the line belongs to, such as setup", to=FinishFlag()
    )
    launch_failure_code = setting(NUMBER, None, "Exit code of that line", to=FinishFlag())


FINISH = (*rows_of(FinishSettings).values(), *OF_FINISH)
"""All flags of ``finish``."""
