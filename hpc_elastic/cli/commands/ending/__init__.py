"""The commands that end, resize and try a run, and the end of its job script."""
