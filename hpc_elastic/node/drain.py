"""Ending a start of the run so that its work is saved: signals, the agreed step, the deadline."""
