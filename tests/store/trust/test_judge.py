"""Who can put another directory in the place of a run's."""

from __future__ import annotations

import struct

import pytest

from hpc_elastic.store.trust import (
    EntryKind,
    Exposure,
    Party,
    Trusted,
    TrustedPlace,
    TrustLevel,
    acl_entries,
    judge,
)

ROOT, ALICE, BOB, PROJECT, OWN = 0, 1001, 1002, 3000, 1001
TRUSTED = Trusted(ALICE, frozenset({ROOT, ALICE}), frozenset({OWN}))
EVERYBODY = Party(EntryKind.EVERYBODY)
MEMBERS = Party(EntryKind.GROUP, PROJECT)
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
ANY = 0xFFFFFFFF


def acl(*entries: tuple[int, int, int]) -> bytes:
    """Return a POSIX ACL as the kernel gives it."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def place(  # noqa: PLR0913 - what stat tells of a directory
    mode: int,
    uid: int = ALICE,
    gid: int = PROJECT,
    entry_uid: int | None = ALICE,
    acl: bytes | None = None,
    name: str = "proj",
    is_link: bool = False,
) -> TrustedPlace:
    """Return a directory on the way to a run."""
    return TrustedPlace(f"/data/{name}", uid, gid, 0o40000 | mode, acl, f"/data/{name}/x", entry_uid, is_link)


NAMED = acl((USER_OBJ, 7, ANY), (USER, 7, BOB), (GROUP_OBJ, 5, ANY), (MASK, 7, ANY), (OTHER, 0, ANY))
MASKED = acl((USER_OBJ, 7, ANY), (USER, 7, BOB), (GROUP_OBJ, 7, ANY), (MASK, 5, ANY), (OTHER, 0, ANY))
HARMLESS = acl((USER_OBJ, 7, ANY), (USER, 7, ALICE), (GROUP_OBJ, 5, ANY), (MASK, 7, ANY), (OTHER, 5, ANY))
GROUPS = acl((USER_OBJ, 7, ANY), (GROUP_OBJ, 7, ANY), (GROUP, 7, PROJECT), (MASK, 7, ANY), (OTHER, 0, ANY))
CASES: dict[str, tuple[TrustedPlace, TrustLevel | None, tuple[Party, ...]]] = {
    "private": (place(0o700), None, ()),
    "readable": (place(0o755), None, ()),
    "of root": (place(0o755, ROOT), None, ()),
    "sticky of root": (place(0o1777, ROOT), None, ()),
    "sticky, not there yet": (place(0o1777, ROOT, entry_uid=None), None, ()),
    "group writes": (place(0o775), TrustLevel.SHARED, (MEMBERS,)),
    "setgid project": (place(0o2775, ROOT), TrustLevel.SHARED, (MEMBERS,)),
    "group writes, sticky": (place(0o1775, ROOT), None, ()),
    "private group": (place(0o775, gid=OWN), None, ()),
    "of a PI": (place(0o755, BOB), TrustLevel.SHARED, (Party(EntryKind.OWNER, BOB),)),
    "setgid of a PI": (place(0o2770, BOB), TrustLevel.SHARED, (Party(EntryKind.OWNER, BOB), MEMBERS)),
    "sticky of a PI": (place(0o1777, BOB), TrustLevel.SHARED, (Party(EntryKind.OWNER, BOB),)),
    "everybody writes": (place(0o777), TrustLevel.OPEN, (EVERYBODY, MEMBERS)),
    "only others write": (place(0o757, ROOT), TrustLevel.OPEN, (EVERYBODY,)),
    "own link": (place(0o1777, ROOT, is_link=True), None, ()),
    "foreign link": (
        place(0o755, entry_uid=BOB, is_link=True),
        TrustLevel.OPEN,
        (Party(EntryKind.LINK_OWNER, BOB),),
    ),
    "foreign folder of ours": (
        place(0o755, BOB, name="hpc_elastic_runs"),
        TrustLevel.OPEN,
        (Party(EntryKind.OWNER, BOB),),
    ),
    "shared folder of ours": (place(0o775, name="hpc_elastic_runs"), TrustLevel.OPEN, (MEMBERS,)),
    "sticky folder of ours": (place(0o1777, ROOT, name="hpc_elastic_runs"), None, ()),
    "ACL names a user": (place(0o770, acl=NAMED), TrustLevel.SHARED, (Party(EntryKind.USER, BOB),)),
    "ACL masked": (place(0o750, acl=MASKED), None, ()),
    "ACL with a mask that denies": (place(0o770, acl=MASKED), None, ()),
    "ACL names only the user": (place(0o775, acl=HARMLESS), None, ()),
    "ACL beside a private group": (place(0o770, gid=OWN, acl=GROUPS), TrustLevel.SHARED, (MEMBERS,)),
    "ACL not understood": (place(0o770, acl=b"\x03\0\0\0"), TrustLevel.SHARED, (MEMBERS,)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_directory_above_a_run_is_judged(case: str) -> None:
    """By owner, mode, sticky bit, ACL and name."""
    given, level, by = CASES[case]
    expected = [] if level is None else [Exposure(given, level, by)]
    assert expected == judge([given], TRUSTED)


def test_the_worst_comes_first() -> None:
    """Whatever their order from above."""
    found = judge([place(0o775), place(0o700), place(0o777)], TRUSTED)
    assert [TrustLevel.OPEN, TrustLevel.SHARED] == [each.level for each in found]


@pytest.mark.parametrize("data", [b"", b"\x02\0\0\0\x01", b"\x01\0\0\0", b"\x02\0\0\0" + b"\0" * 9])
def test_an_acl_that_is_none_is_not_guessed_at(data: bytes) -> None:
    """Of another version, or cut off."""
    assert acl_entries(data) is None
