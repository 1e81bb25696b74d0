"""The faults of a cluster, played on a running job."""
