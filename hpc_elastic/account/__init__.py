"""The account of a run's time: every second of its wall time in one bucket, on every node."""
