"""The agent of one node: rendezvous, workers, restarts, drain, exit barrier."""
