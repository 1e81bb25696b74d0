"""The workers of one node: environment, processes, memory, stacks."""
