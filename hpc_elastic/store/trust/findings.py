"""What `doctor` says of those who can put another directory in the place of a run's."""

from __future__ import annotations

import os

from hpc_elastic.store.check.findings import Finding, Level
from hpc_elastic.store.trust import judge
from hpc_elastic.store.trust.above import exposures, open_text, shared_text

_WHAT = "others"


def trust_findings(path: str) -> list[Finding]:
    """Return who beside root and the user can exchange the directory of a run made in a directory.

    Args:
        path: absolute path of the directory that runs are to be in; it need not be there.
    """
    run = os.path.join(path, "run")
    try:
        found = exposures(run)
    except OSError as error:
        return [Finding(_WHAT, f"its possible writers are unknown: {error}", Level.WARNING, "try again")]
    if not found:
        return [Finding(_WHAT, "only you and root can put another directory in the place of a run")]
    if found[0].level is judge.TrustLevel.OPEN:
        trouble = open_text(found[0], run)
        return [Finding(_WHAT, f"submit refuses it: {trouble.what}", Level.PROBLEM, trouble.fix)]
    fix = "none is needed; a run that no other user can end has a --run-dir below a directory of your own"
    return [Finding(_WHAT, shared_text(found), Level.WARNING, fix)]
