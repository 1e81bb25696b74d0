"""Job spec, script, commands and the life of a job on Slurm. Never imports the agent."""
