"""The options of ``--rdzv-conf``: ours, torch's in our meaning, and those that mean nothing here."""

from __future__ import annotations

from hpc_elastic.errors import InputError
from hpc_elastic.rendezvous.options import OF_ETCD, OURS, TORCHS, WITHOUT_MEANING, options_from
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.rendezvous.utils import parse_rendezvous_config
from hpc_elastic.settings.table import RENDEZVOUS

_BEATS = ("heartbeat_interval", "keep_alive_interval")
_LEASES = ("lease", "keep_alive_max_attempt")
_WITHOUT_MEANING = (*WITHOUT_MEANING, *OF_ETCD, "close_timeout")


def conf_of(text: str, backend: str) -> tuple[dict[str, float], list[str]]:
    """Return the times that were given, by our names, and a note if others were given too.

    Raises:
        InputError: an option is unknown or its value cannot be used.
    """
    try:
        given = parse_rendezvous_config(text)
        if backend == "etcd" and "timeout" in given and "join_timeout" not in given:
            given["join_timeout"] = given.pop("timeout")  # there it is how long nodes are waited for
        kept = {name: value for name, value in given.items() if name not in _WITHOUT_MEANING}
        _refuse_unknown(kept)
        settings = options_from(RendezvousParameters("shared_fs", "-", "-", 1, 1, None, **kept)).settings
    except ValueError as error:
        fix = "write NAME=VALUE,...: join_timeout=600,last_call_timeout=30,keep_alive_interval=1"
        raise InputError(str(error), where="--rdzv-conf", fix=fix) from None
    told = {name for name in RENDEZVOUS if name in given}
    told |= {"heartbeat_interval"} if any(name in given for name in _BEATS) else set()
    told |= {"lease"} if any(name in given for name in (*_LEASES, *_BEATS)) else set()
    idle = [name for name in given if name in _WITHOUT_MEANING]
    notes = [f"--rdzv-conf: not needed here, without effect: {', '.join(idle)}"] if idle else []
    return {name: getattr(settings, name) for name in told}, notes


def _refuse_unknown(given: dict[str, str]) -> None:
    known = [name for name in (*OURS, *TORCHS) if name not in ("restart", "node")]
    for name in given:
        if name not in known:
            import difflib  # noqa: PLC0415 - only after a mistake

            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise ValueError(f"{name!r} is not an option of the rendezvous{hint}")
