"""What happened in a run, told to people."""
