"""The settings of a run, each declared once: type, default, bounds, help, spelling and readers.

Everything that takes or hands on a setting is made from these tables: the options of ``submit``, the flags of
``run`` and ``finish``, the keys of a job file, the fields of `JobSpec`, the parameters of the submitit
executor, the arguments in a job script, and the page of the reference. Pure, and light: agents start with it.
"""
