"""Real shared file systems on one machine, each mounted by several clients, for development and tests.

Where to look:

- `layout`, `state`: file names below a directory, and what it remembers between two commands.
- `packages`, `switch`, `launch`: software, network, and booting a node.
- `node_main`, `node_setup`, `exec_server`, `wire`: what runs on a node.
- `exec_client`: run a program on a node from outside.
- `nfs`, `gluster`: how one kind is served and mounted.
- `commands`, `faults`: the commands; `cli`: their spelling.
"""
