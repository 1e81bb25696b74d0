"""Questions to Slurm whose answers no job name, comment, reason, feature or path in them can forge."""
