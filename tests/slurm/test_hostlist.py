"""Host lists as Slurm compresses them."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.hostlist import expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("node1", ("node1",)),
        ("a,b", ("a", "b")),
        ("node[1-3,7],gpu-[01-02]", ("node1", "node2", "node3", "node7", "gpu-01", "gpu-02")),
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("r[1-2]n[08-09]-ib", ("r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib")),
        ("node[5]", ("node5",)),
    ],
)
def test_lists_expand_in_order(text: str, hosts: tuple[str, ...]) -> None:
    """Ranges, leading zeros and several brackets expand as scontrol show hostnames does."""
    assert hosts == expand(text)


@pytest.mark.parametrize(
    "text",
    [
        "node[1-3",
        "node1-3]",
        "node[3-1]",
        "node[a]",
        "n[[1]]",
        "n[1-]",
        "n[0-9999999]",
        "n[²]",
        "n[٣-4]",
        "n[1-٣]",
    ],
)
def test_what_is_no_host_list_is_refused(text: str) -> None:
    """The message shows the list."""
    with pytest.raises(InputError, match="is not a host list"):
        expand(text)
