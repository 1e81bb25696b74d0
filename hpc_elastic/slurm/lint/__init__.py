"""Pitfalls in job scripts and training scripts: rules with codes, each with its reason and fix."""
