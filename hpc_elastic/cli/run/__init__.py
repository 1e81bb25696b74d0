"""The flags of ``hpc-elastic run``, and the agent that follows from them."""
