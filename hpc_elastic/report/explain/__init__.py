"""The reason for the state of a run: the stops of its workers with cause, cost, culprit and evidence."""
