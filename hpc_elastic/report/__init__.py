"""The events of a run as text for people."""
