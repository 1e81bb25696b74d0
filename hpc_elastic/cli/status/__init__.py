"""The lines of ``hpc-elastic status`` below its first one, and those for a folder of runs."""
