"""The measure `ettr`: the share of time that is training, under the same faults for each way to run a job."""
