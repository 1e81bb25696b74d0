"""The commands about the cluster and this installation."""
