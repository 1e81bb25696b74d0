"""The processes of a fake Slurm: the controller, step daemons, and the stand-in programs."""
