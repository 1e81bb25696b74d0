"""Torch's backends that need a server (c10d, etcd, etcd-v2), as other names for the one that needs none."""

from __future__ import annotations

import os
from difflib import get_close_matches

from hpc_elastic.ids import RUNS_FOLDER
from hpc_elastic.meet.interface import RendezvousHandler
from hpc_elastic.paths import own_name
from hpc_elastic.record.run_directory import above_runs, directory_name, first_open, has_ended
from hpc_elastic.rendezvous.options import KNOWN, OF_ETCD
from hpc_elastic.rendezvous.parameters import RendezvousParameters
from hpc_elastic.rendezvous.utils import parse_rendezvous_endpoint

_OF_SERVERS = ("is_host", "store_type", "read_timeout", *OF_ETCD)


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return the handler ``shared_fs`` under the name that was asked for.

    An endpoint with a ``/`` is the directory where the nodes meet; with ``store_type=file`` of ``c10d`` it
    is where the runs have theirs, beside the file if there is one. Without a ``/`` it is a host or nothing,
    and they meet in ``hpc_elastic_runs/<run id>_<host>-<port>`` below the working directory, as agents of
    `hpc-elastic run` do; it has to be the same shared one on all nodes. Options are those of ``shared_fs``;
    options for a server are left out.

    Raises:
        ValueError: the endpoint is none, or an option cannot be used.
        RunDirError: the directory cannot be used.
        RendezvousConnectionError: the directory does not answer.
    """
    from hpc_elastic.rendezvous.shared_fs import create_handler as create  # noqa: PLC0415 - only if asked for

    place = directory_of(params)
    options = options_for_shared_fs(params)
    _tell(params, place, sorted({*params.config} - {*options} - {"timeout"}))
    return create(
        RendezvousParameters(
            params.backend,
            place,
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            params.local_addr,
            **options,
        )
    )


def directory_of(params: RendezvousParameters) -> str:
    """Return the directory where the nodes of a run meet whose endpoint may be a host.

    Raises:
        ValueError: the endpoint is neither a path nor a host with or without a port, or there is no run id.
    """
    endpoint = params.endpoint.strip()
    is_path = "/" in endpoint and "://" not in endpoint
    if is_path and not _is_store_file(params):
        return endpoint
    if not params.run_id:
        raise ValueError("The run id must be a non-empty string.")
    if is_path:
        return first_open(os.path.join(above_runs(endpoint), own_name(params.run_id)), has_ended)
    parse_rendezvous_endpoint(endpoint, 0)
    root = os.path.join(os.getcwd(), RUNS_FOLDER, directory_name(params.run_id, endpoint))
    return first_open(root, has_ended)


def _is_store_file(params: RendezvousParameters) -> bool:
    """Tell whether the endpoint is, for torch, the file of a store, which any number of runs share."""
    return params.backend == "c10d" and _store_type(params) == "file"


def _store_type(params: RendezvousParameters) -> str:
    return str(params.get("store_type", "tcp")).strip().lower()


def options_for_shared_fs(params: RendezvousParameters) -> dict[str, object]:
    """Return the options that mean something without a server; as in torch, foreign ones are no error.

    Raises:
        ValueError: torch would refuse one of the others.
    """
    if params.backend == "c10d":
        check_c10d(params)
    else:
        _check_etcd(params)
    options = {key: value for key, value in params.config.items() if not _is_of_server(key)}
    if params.backend == "etcd" and "timeout" in options:  # there it is how long nodes are waited for
        options.setdefault("join_timeout", options["timeout"])
    return options


def _is_of_server(option: str) -> bool:
    """Tell whether an option is one of a server, or foreign to all; a misspelt option is neither."""
    return option in _OF_SERVERS or not get_close_matches(option, (*KNOWN, *_OF_SERVERS), 1)


def check_c10d(params: RendezvousParameters) -> None:
    """Refuse the same options as torch's backend ``c10d``.

    Raises:
        ValueError: naming it.
    """
    if _store_type(params) not in {"file", "tcp"}:
        raise ValueError("Invalid store type given. Currently only supports file and tcp.")
    _check_read_timeout(params)
    params.get_as_bool("is_host")


def _check_etcd(params: RendezvousParameters) -> None:
    if params.backend == "etcd-v2":
        _check_read_timeout(params)
    if str(params.get("protocol", "http")).strip().lower() not in {"http", "https"}:
        raise ValueError("The protocol must be HTTP or HTTPS.")


def _check_read_timeout(params: RendezvousParameters) -> None:
    if (params.get_as_int("read_timeout", 60) or 0) <= 0:
        raise ValueError("The read timeout must be a positive integer.")


def _tell(params: RendezvousParameters, place: str, ignored: list[str]) -> None:
    """Say once per handler where the nodes meet, as a warning if the place is a default."""
    import logging  # noqa: PLC0415 - an agent over `shared_fs` does without

    is_chosen = "/" in params.endpoint
    logging.getLogger(__name__).log(
        logging.INFO if is_chosen else logging.WARNING,
        "Rendezvous backend '%s' needs no server here: the nodes of run '%s' meet in the directory %s%s%s",
        params.backend,
        params.run_id,
        place,
        "" if is_chosen else "; if not all nodes see it, give a directory that they do as the endpoint",
        f" (ignored: {', '.join(ignored)})" if ignored else "",
    )
