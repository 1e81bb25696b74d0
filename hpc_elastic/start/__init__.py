"""The composition root: puts an agent together from the rooms below, and joins it to Slurm."""
