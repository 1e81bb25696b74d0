"""Workers that make no progress: noticed, compared over all nodes, named."""
