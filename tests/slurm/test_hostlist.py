"""Host lists as Slurm compresses them."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.client.parse import MAX_HOSTS, expand


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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("r[1-1000]n[1-1000]", "it names more than 100000 hosts"),
        ("n[1-60000],m[1-60000]", "it names more than 100000 hosts"),
        (f"n[1-{MAX_HOSTS + 1}]", "it names more than 100000 hosts"),
        ("n[0-999999999999999999]", "it names more than 100000 hosts"),
        ("n" + "[1-9]" * 3000, "it names more than 100000 hosts"),
        ("n" + "[1]" * 3000, "it names a host of more than 255 characters"),
        ("n" * 252 + "[1,1000]", "it names a host of more than 255 characters"),
        ("n" * 253 + "[001]", "it names a host of more than 255 characters"),
        ("n" * 253 + "[1-1]mmm", "it names a host of more than 255 characters"),
        ("n" * 256, "it names a host of more than 255 characters"),
        (f"n[{'9' * 400}]", "is not a number or range"),
        (f"n[{'9' * 5000}-{'9' * 5000}]", "is not a number or range"),
        ("n[\u0661]", "is not a number or range"),
        ("[" * 3000 + "]" * 3000, "the brackets do not match"),
    ],
)
@pytest.mark.timeout(120)  # also on a busy machine
def test_hosts_are_counted_before_the_first_name_is_built(text: str, why: str) -> None:
    """However many a short text names; the message quotes the beginning of a long one."""
    with pytest.raises(InputError, match=why) as error:
        expand(text)
    assert text[:50] in str(error.value)
    assert len(str(error.value)) < 500


def test_as_many_hosts_as_there_may_be_are_named() -> None:
    """The limit itself is one that a cluster may have, and a name may be as long as a host's."""
    hosts = expand(f"n[1-{MAX_HOSTS}]")
    assert (MAX_HOSTS, "n1", f"n{MAX_HOSTS}") == (len(hosts), hosts[0], hosts[-1])
    assert ("n" * 255,) == expand("n" * 255)
    assert ("n000000000000000001",) == expand("n[000000000000000001]")
