"""Single small faults put into the code, each of which a fast test has to notice; see docs/mutation.md."""
