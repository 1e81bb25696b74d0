"""The commands that start a run, and show its job script."""
