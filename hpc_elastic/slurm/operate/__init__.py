"""Commands on a run that exists: stop, cancel, scale."""
