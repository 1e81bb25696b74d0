"""The longest time limit that the partitions of a job allow."""

from __future__ import annotations

import pytest

from hpc_elastic.slurm.submit.validate import longest_limit


@pytest.mark.parametrize(
    ("limits", "longest"),
    [
        (["01:00:00"], (3600.0, "01:00:00")),
        (["01:00:00", "2-00:00:00"], (172800.0, "2-00:00:00")),
        (["01:00:00", "UNLIMITED"], None),
        ([], None),
    ],
    ids=repr,
)
def test_slurm_starts_a_job_in_any_of_its_partitions(
    limits: list[str], longest: tuple[float, str] | None
) -> None:
    """So the longest limit counts, and no limit is longer than all."""
    assert longest == longest_limit([{"MaxTime": limit} for limit in limits])


def test_a_partition_that_tells_no_limit_refuses_nobody() -> None:
    """As one that is not there: of it Slurm itself tells."""
    assert longest_limit([{}]) is None
