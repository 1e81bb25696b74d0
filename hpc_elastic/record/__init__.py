"""The run's memory: the journal and its fold, the run directory, checkpoint marks."""
