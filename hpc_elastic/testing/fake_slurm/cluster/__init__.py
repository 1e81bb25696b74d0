"""The state of a fake Slurm and its changes: jobs, nodes, time, scheduling, steps, endings. Pure."""
