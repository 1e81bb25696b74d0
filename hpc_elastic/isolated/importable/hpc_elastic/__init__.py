"""The package hpc_elastic alone, for a Python that does not have it.

The directory above holds nothing else. So a Python that searches it finds this package, as it is installed
for the agents, and no other package of theirs.
"""

import os

__path__ = [os.path.abspath(__file__).removesuffix("/isolated/importable/hpc_elastic/__init__.py")]
__file__ = os.path.join(__path__[0], "__init__.py")
with open(__file__, encoding="utf-8") as _file:
    exec(compile(_file.read(), __file__, "exec"))  # noqa: S102 - the package itself
