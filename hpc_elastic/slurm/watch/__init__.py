"""The news of Slurm that an agent hears while its job runs."""
