"""A job on this machine without Slurm: ``submit --local``."""
