"""What ``hpc-elastic doctor`` proves about a directory, from one node and from several."""
