"""Real runs on a real Slurm under random faults; see `scripts/chaos --help`."""
