"""How long a run takes to get over a fault; see `scripts/faults --help`."""
