"""Who beside root and the user can get at a run directory, or put another one in its place."""
