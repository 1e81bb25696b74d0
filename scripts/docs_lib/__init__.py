"""The parts of `scripts/docs`."""
