"""The jobs of a run: their records in the run directory, and how they stand in Slurm."""
