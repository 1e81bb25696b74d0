"""Submitting a run: request, run directory, queue, and further jobs of the same run."""
