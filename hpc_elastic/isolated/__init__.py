"""Starting our own processes so that no other user can choose their imports.

Python searches the working directory, or that of the script, before its own library. A user who can write
there would run code in our processes, and a user's own ``signal.py`` would break them. So they start with
``python -I``, which searches neither these nor the directories of PYTHON* variables. The user's workers
keep the search path of a plain Python.
"""
