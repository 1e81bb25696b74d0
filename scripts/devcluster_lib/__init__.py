"""A real multi-node Slurm on one machine, for development and tests.

Where to look:

- `settings`, `addresses`, `layout`, `config`: data and text, no side effects.
- `processes`, `network`, `cgroups`, `namespaces`: what the kernel offers, one file each.
- `node_init`: the program that is PID 1 of a node.
- `packages`, `accounts`, `daemons`: software, users and Slurm's own processes.
- `state`: what a cluster directory remembers between two commands.
- `cluster`, `faults`: the commands; `cli`: their spelling.
"""
