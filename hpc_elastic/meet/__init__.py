"""How the agents of a run meet in the run directory: membership, liveness, rules, rank order."""
