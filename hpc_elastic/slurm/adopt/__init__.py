"""Changes to a job script of the user's own, after which its run survives preemption and faults."""
