"""Child processes that cannot outlive this one: start, watch, end, and follow their logs."""
