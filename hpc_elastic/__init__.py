"""Long multi-GPU jobs on Slurm that survive preemption, requeue and node loss.

Importing this package is cheap on purpose: a thousand nodes may import it from one shared file
system at the same moment. Everything is imported where it is used.
"""

__version__ = "0.1.0"
