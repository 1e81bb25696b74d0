"""How the state of a fake Slurm changes: time, scheduling, steps, endings. Pure."""
