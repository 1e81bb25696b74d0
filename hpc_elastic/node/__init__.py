"""The work of one node of a run: the loop of the agent, its decisions and their execution."""
