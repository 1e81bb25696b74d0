"""What an agent hears from Slurm while its job runs."""
