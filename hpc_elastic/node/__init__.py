"""What one node of a run does: the agent's loop, its decisions and their execution."""
