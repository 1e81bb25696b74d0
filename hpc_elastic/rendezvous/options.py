"""The options of the handler ``shared_fs``: our names and torch's, in one meaning."""

from __future__ import annotations

from hpc_elastic.meet.rules import MAX_INTERVAL_S, MeetingSettings
from hpc_elastic.named_tuple import NamedTuple
from hpc_elastic.rendezvous.parameters import RendezvousParameters, seconds_of
from hpc_elastic.settings.table import RENDEZVOUS

OURS = (
    *RENDEZVOUS,
    "close_timeout",
    "restart",
    "node",
)
TORCHS = ("keep_alive_interval", "keep_alive_max_attempt")
# options of torch's launcher and its other backends, without a meaning here
WITHOUT_MEANING = (
    "heartbeat",
    "heartbeat_timeout",
    "read_timeout",
    "timeout",
    "rank",
    "is_host",
    "store_type",
)
# options of etcd's server and its clients alone
OF_ETCD = ("protocol", "etcd_prefix", "cert", "key", "cacert", "ssl_cert", "ssl_cert_key", "ca_cert")
KNOWN = (*OURS, *TORCHS, *WITHOUT_MEANING)
_LEASE_BEATS = 3  # a shorter lease gives healthy nodes up


class Options(NamedTuple):
    """The options of a handler; times in seconds."""

    settings: MeetingSettings
    close_timeout: float = 30.0  # how long closing is tried while the directory does not answer
    restart: int | None = None  # which start of the job this is; None: found out from the run
    node: str = ""  # this node's name for people; the host's name if empty


def options_from(params: RendezvousParameters) -> Options:
    """Return the options in the parameters of a handler.

    Raises:
        ValueError: an option is unknown, no number, given twice with different values, or senseless.
    """
    _refuse_unknown(params)
    defaults = MeetingSettings()
    interval = _one_of(params, "heartbeat_interval", "keep_alive_interval") or defaults.heartbeat_interval
    attempts = params.get_as_int("keep_alive_max_attempt")
    lease = seconds_of(params, "lease")
    if lease is None:
        lease = attempts * interval if attempts is not None else max(defaults.lease, _LEASE_BEATS * interval)
    settings = MeetingSettings(
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        join_timeout=_positive(params, "join_timeout", defaults.join_timeout),
        last_call_timeout=_positive(params, "last_call_timeout", defaults.last_call_timeout),
        heartbeat_interval=interval,
        lease=lease,
        leader_patience=min(defaults.leader_patience, lease / 2),
    )
    if interval > MAX_INTERVAL_S:
        raise ValueError(f"The interval of heartbeats ({interval:g} s) must be a day at most.")
    if interval <= 0 or lease < _LEASE_BEATS * interval:
        raise ValueError(
            f"A lease of {lease:g} s with a heartbeat each {interval:g} s gives healthy nodes up: make "
            f"'lease' (or 'keep_alive_max_attempt') at least {_LEASE_BEATS} heartbeats."
        )
    close_timeout = _positive(params, "close_timeout", Options._field_defaults["close_timeout"])
    return Options(settings, close_timeout, params.get_as_int("restart"), str(params.get("node") or ""))


def _refuse_unknown(params: RendezvousParameters) -> None:
    for name in params.config:
        if name not in KNOWN:
            from difflib import get_close_matches  # noqa: PLC0415 - only for a misspelt option

            near = get_close_matches(name, KNOWN, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise ValueError(
                f"The rendezvous configuration option '{name}' is not known to the backend 'shared_fs'."
                f"{hint} Options are: {', '.join((*OURS, *TORCHS))}."
            )


def _one_of(params: RendezvousParameters, ours: str, torchs: str) -> float | None:
    """Return an option that has two names.

    Raises:
        ValueError: both are given and differ.
    """
    value, same = seconds_of(params, ours), seconds_of(params, torchs)
    if value is not None and same is not None and value != same:
        raise ValueError(
            f"The rendezvous configuration options '{ours}' ({value:g}) and '{torchs}' ({same:g}) mean the "
            "same: give one of them."
        )
    return value if value is not None else same


def _positive(params: RendezvousParameters, name: str, default: float) -> float:
    value = seconds_of(params, name, default)
    if value is None or value <= 0:
        raise ValueError(f"The rendezvous configuration option '{name}' ({value:g}) must be positive.")
    return value
