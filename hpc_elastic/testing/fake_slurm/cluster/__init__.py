"""The state of a fake Slurm: nodes, partitions, jobs, settings."""
