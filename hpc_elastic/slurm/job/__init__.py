"""The job: its spec, the checks on it, and the script made from it."""
