"""What scripts/gpu-check tries on a machine with a GPU."""
