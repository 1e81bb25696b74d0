"""Start agents from a program of one's own; names and meaning as in torch.distributed.launcher."""

from hpc_elastic.launcher.api import LaunchConfig, elastic_launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]
