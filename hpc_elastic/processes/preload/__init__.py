"""Warm workers: one process per node imports modules once, and each worker is a copy of it.

``rules`` judges commands and states of processes, ``preloader`` is the agent's side, ``server`` is the
process that imports, and ``warm_worker`` turns a copy of it into the worker that Python would have started.
``notes`` tells which modules workers import, and ``learning`` chooses those to be preloaded in another round.
Server, worker and notes run in the workers' interpreter, with the standard library alone, and leave nothing
of it there.
"""
