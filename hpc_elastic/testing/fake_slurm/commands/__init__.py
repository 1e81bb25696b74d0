"""The commands of a fake Slurm: options in, lines out."""
