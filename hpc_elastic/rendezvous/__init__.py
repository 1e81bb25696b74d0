"""Bringing the nodes of a run together: state and rules (pure), and their executor."""
