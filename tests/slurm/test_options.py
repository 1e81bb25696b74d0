"""The options of sbatch."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import InputError
from hpc_elastic.slurm.job import options


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("p", "partition"),
        ("-p", "partition"),
        ("--mem-per-cpu", "mem-per-cpu"),
        ("mem_per_cpu", "mem-per-cpu"),
    ],
)
def test_an_option_is_known_by_all_its_spellings(written: str, name: str) -> None:
    """Short and long, with dashes or underscores."""
    assert name == options.option_name(written)


def test_a_misspelt_option_is_answered_with_the_right_one() -> None:
    """Without a Slurm to ask, the built-in list decides."""
    with pytest.raises(InputError, match="no option --licences") as caught:
        options.check_known(["licences"], None)
    assert "'licenses'" in caught.value.fix
    assert "sbatch.licences" == caught.value.where


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nothere.toml", ""),
        ("g.toml", ""),
        ("tarin.toml", "did you mean 'train.toml'?"),
        ("train", "did you mean 'train.toml'?"),
        ("toml.x", ""),
    ],
)
def test_file_names_are_not_alike_for_their_ending(name: str, near: str) -> None:
    """A short name with the same ending is no likely meaning."""
    assert near == options.near_file(name, ["h.toml", "train.toml"])


def test_file_names_without_an_ending_may_be_alike() -> None:
    """Also to one that has an ending."""
    assert "did you mean 'train'?" == options.near_file("tarin", ["train", "x"])
    assert "did you mean 'train'?" == options.near_file("train.x", ["train", "x"])


def test_the_installed_slurm_decides_where_there_is_one() -> None:
    """An option that the site does not have is refused, one that a plugin adds is taken."""
    options.check_known(["container-image"], {"container-image"})
    with pytest.raises(InputError, match="sbatch of this machine"):
        options.check_known(["tres-bind"], {"container-image"})


@pytest.mark.parametrize(
    ("name", "fix"),
    [("container-imag", "did you mean 'container-image'?"), ("zzz", "look it up with sbatch --help")],
)
def test_the_fix_names_what_the_installed_slurm_has(name: str, fix: str) -> None:
    """Where nothing is like it, its help does."""
    with pytest.raises(InputError) as told:
        options.check_known([name], {"container-image"})
    assert fix == told.value.fix


def test_every_owned_option_exists_and_is_explained() -> None:
    """An option that cannot be given says why and what to do instead."""
    assert set(options.OWNED) <= options.BUILT_IN
    assert all(why and instead for why, instead in options.OWNED.values())


def test_every_short_name_and_field_belongs_to_an_option() -> None:
    """The tables agree with each other."""
    assert set(options.SHORT.values()) <= options.BUILT_IN
    assert set(options.FIELDS) <= options.BUILT_IN
    assert not set(options.FIELDS) - {"comment"} & set(options.OWNED)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (True, "--x"),
        (3, "--x=3"),
        ("gpu:a100:4", "--x=gpu:a100:4"),
        ("node[1-3]", "--x=node[1-3]"),
        ("two words", '--x="two words"'),
        ('a"b', '--x="a\\"b"'),
        ("a\\b", '--x="a\\\\b"'),
        ("#1", '--x="#1"'),
        ("it's", '--x="it\'s"'),
        ("$HOME `id`", '--x="$HOME `id`"'),
        ("ü", '--x="ü"'),
        ("", '--x=""'),
    ],
    ids=repr,
)
def test_header_lines_are_quoted_as_sbatch_reads_them(value: str | int | bool, line: str) -> None:
    """It knows quotes and the backslash but expands nothing."""
    assert line == options.header_line("x", value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("hold", "", "takes no value.*\\n.*write -o hold, "),
        ("gres", True, "needs a value\\n.*write -o gres=VALUE, "),
    ],
)
def test_flags_take_no_value_and_others_need_one(name: str, value: str | bool, words: str) -> None:
    """A flag with a value and an option without one are told apart; the fix is of a command line, too."""
    with pytest.raises(InputError, match=words):
        options.check_value(name, value)


def test_a_header_line_cannot_carry_a_line_break() -> None:
    """Everything after it would be cut off or be a command."""
    with pytest.raises(InputError, match="cannot carry"):
        options.check_value("wckey", "a\n#SBATCH --uid=0")


@pytest.mark.parametrize(
    ("name", "value"), [("hold", True), ("gres", "gpu:2"), ("priority", 3), ("wckey", "a b"), ("nice", 0)]
)
def test_a_value_that_suits_is_taken(name: str, value: str | int | bool) -> None:
    """Flags are true or false, anything else is a text or a number."""
    options.check_value(name, value)


def test_options_of_the_protocol_are_refused_and_no_others() -> None:
    """The error says what to do instead."""
    options.check_owned(["gres", "wckey"])
    name = next(iter(options.OWNED))
    with pytest.raises(InputError, match=f"--{name} cannot be given"):
        options.check_owned(["gres", name])


def test_at_most_three_words_are_near() -> None:
    """More would be a guess."""
    assert "did you mean 'ccd'?" == options.near("ccc", ["aab", "ccd"])
    assert 3 == options.near("aaa", ["aab", "aac", "aad", "aae"]).count("'") // 2
    assert "" == options.near("zzz", ["aab"])


def test_options_that_contradict_each_other_are_named_as_they_were_written() -> None:
    """One of them alone is fine."""
    first, second = options._CONTRADICTIONS[0]
    options.check_contradictions({first: "one"})
    options.check_contradictions({second: "other"})
    with pytest.raises(InputError, match="one and other contradict each other"):
        options.check_contradictions({first: "one", second: "other"})


@pytest.mark.parametrize("char", ["\n", "\x00", "\x1f", "\x7f"])
def test_no_control_character_is_carried(char: str) -> None:
    """Wherever it stands in a value; a space is none."""
    for value in (char, f"a{char}", f"{char}b"):
        with pytest.raises(InputError, match="cannot carry"):
            options.check_value("wckey", value)
    options.check_value("wckey", "a b~")
