"""The checks of ``hpc-elastic doctor`` on a directory, from one node and from several."""
