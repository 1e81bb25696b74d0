"""The commands that show a run: its state, its past and its logs."""
