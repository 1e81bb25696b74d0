"""A job script of the user's own, changed so that its run survives what happens to jobs."""
