"""Starting our own processes so that nobody else decides what they import.

Python searches the working directory, or that of the script, before its own library. Whoever can write
there would run code in our processes, and a user's own ``signal.py`` would break them. So they start with
``python -I``, which searches neither these nor what PYTHON* variables name. The user's workers do not: they
get from Python what they would get without us.
"""
