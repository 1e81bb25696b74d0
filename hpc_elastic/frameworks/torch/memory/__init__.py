"""States of a training in the memory of nodes: kept at a fault, copied ahead of one, and found again."""
