"""Doing to a running job what the cluster may do to it some day."""
