"""Since when which worker is silent, by a clock that only the test moves."""

from __future__ import annotations

import math

import pytest

from hpc_elastic.node.hangs.watch import HangWatch, Sign, Silence, is_still, silence_text
from hpc_elastic.node.setup.hang_times import START, STEP, HangOptions, Length
from hpc_elastic.worker.channel import Section

TEN = HangOptions(timeout=10.0)
EVAL = Section(1, "eval", None)
LIMITED = Section(1, "eval", 100.0)


def ticked(step: int, *sections: Section, count: int = 0) -> Sign:
    """Return what a channel shows after so many ticks."""
    return Sign(step, count, step, sections)


def watch(options: HangOptions = TEN, **known: object) -> HangWatch:
    """Return a watch over workers that start at 0 s."""
    ticking = known.pop("ticking", ())
    lengths = {kind: length for kind, length in known.items() if isinstance(length, Length)}
    return HangWatch(options, lengths, ticking if isinstance(ticking, tuple) else (), 0.0, 5.0)


def after(one: HangWatch, sign: Sign, until: float, start: float = 0.0) -> tuple[Silence, ...]:
    """Look each second at one worker that shows the same all the time; return what the last look says."""
    found: tuple[Silence, ...] = ()
    second = start
    while second <= until:
        found = one.check({0: sign}, second)
        second += 1
    return found


def test_a_silence_ends_with_a_tick_or_begins_to_be_too_long() -> None:
    """Not before its time, then at each look."""
    one = watch()
    assert () == after(one, ticked(1), 9)
    ((rank, seconds, limit, kind, *_),) = after(one, ticked(1), 10, 10)
    assert (0, 10.0, 10.0, STEP) == (rank, seconds, limit, kind)
    assert () == after(one, ticked(2), 20, 11)
    assert after(one, ticked(2), 21, 21)


def test_who_has_never_ticked_is_not_watched() -> None:
    """Not by the time of steps, not by what other runs of the workers have taken."""
    assert () == after(watch(), Sign(), 10_000)
    assert () == after(watch(HangOptions(), start=Length(1.0, 5)), Sign(), 10_000)


def test_who_has_ticked_in_an_earlier_round_will_tick_again() -> None:
    """Then the time of its start is known."""
    one = watch(HangOptions(), start=Length(400.0, 1), ticking=(0,))
    assert () == after(one, Sign(), 1999)
    ((_, seconds, _, kind, *_),) = after(one, Sign(), 2000, 2000)
    assert (2000.0, START) == (seconds, kind)


def test_a_time_for_the_first_step_is_for_everybody() -> None:
    """Whether anything was ever called or not."""
    assert after(watch(HangOptions(first_step=60.0)), Sign(), 60)
    assert () == after(watch(HangOptions(first_step=60.0)), Sign(), 59)


def test_sections_are_times_of_their_own() -> None:
    """Entering and leaving are signs of life; a section is no part of the time between ticks."""
    one = watch()
    assert () == after(one, ticked(1), 8)
    assert () == after(one, ticked(1, EVAL, count=1), 17, 9)
    ((_, _, _, kind, section, _),) = after(one, ticked(1, EVAL, count=1), 19, 18)
    assert ("section eval", None) == (kind, section)
    assert () == after(one, ticked(1, count=2), 28, 20)
    assert after(one, ticked(1, count=2), 30, 29)
    assert 9.0 == one.lengths[STEP].longest
    assert 11.0 == one.lengths["section eval"].longest


def test_the_limit_of_a_section_is_for_the_whole_block() -> None:
    """Ticks and inner sections in it do not make it longer; silence in it is no hang before."""
    one = watch()
    assert () == after(one, ticked(1, LIMITED, count=1), 99)
    silence = one.check({0: ticked(2, LIMITED, Section(2, "inner", None), count=2)}, 100)[0]
    assert ("eval", 1, 100.0) == (silence.section, silence.number, silence.limit)
    assert is_still(silence, ticked(1, LIMITED), ticked(9, LIMITED, count=5))
    assert not is_still(silence, ticked(1, LIMITED), ticked(9, Section(3, "eval", 100.0), count=5))


def test_the_same_section_again_is_another_block() -> None:
    """Its time starts at its own beginning."""
    one = watch()
    after(one, ticked(1, LIMITED, count=1), 90)
    assert () == after(one, ticked(1, Section(3, "eval", 100.0), count=3), 185, 91)


def test_an_inner_section_without_a_limit_has_that_of_steps() -> None:
    """Inside of one that has."""
    one = watch()
    inside = ticked(1, LIMITED, Section(2, "inner", None), count=2)
    ((_, _, limit, kind, section, _),) = after(one, inside, 10)
    assert (10.0, "section inner", None) == (limit, kind, section)


@pytest.mark.parametrize("gap", [5.0, 30.0, 86_400.0])
def test_nobody_is_blamed_while_nobody_looked(gap: float) -> None:
    """An agent that was stopped, frozen or held up starts all times anew, and measures nothing."""
    one = watch()
    after(one, ticked(1), 8)
    assert () == one.check({0: ticked(1)}, 8 + gap)
    assert () == one.check({0: ticked(1)}, 8 + gap + 4)
    before = one.lengths
    assert () == one.check({0: ticked(2)}, 8 + gap + 8)
    assert before == one.lengths


def test_a_gap_is_not_learned() -> None:
    """A day of suspension would allow any silence."""
    one = watch(HangOptions())
    after(one, ticked(1), 3)
    one.check({0: ticked(2)}, 90_000.0)
    assert STEP not in one.lengths


def test_a_suspicion_in_vain_gives_more_time_each_time() -> None:
    """Twice as much, up to a bound."""
    one = watch()
    after(one, ticked(1), 10)
    one.suspected_in_vain(10)
    assert () == after(one, ticked(1), 29, 11)
    assert after(one, ticked(1), 30, 30)
    for _ in range(20):
        one.suspected_in_vain(30)
    assert after(one, ticked(1), 30 + 640, 31)


def test_off_looks_at_no_section_either() -> None:
    """Its own limit included."""
    assert () == after(watch(HangOptions(timeout=math.inf)), ticked(1, LIMITED, count=1), 1000)


def test_what_is_learned_is_allowed() -> None:
    """A run whose steps take ever longer is left alone."""
    one, now = watch(HangOptions(floor=1.0, samples=1)), 0.0
    for step, seconds in enumerate((1, 4, 19, 90), 1):
        for _ in range(seconds):
            now += 1
            assert () == one.check({0: ticked(step)}, now)
    assert 19.0 <= one.lengths[STEP].longest


def test_only_the_silent_one_is_told() -> None:
    """Of several workers of a node."""
    one = watch()
    found: tuple[Silence, ...] = ()
    for second in range(12):
        found = one.check({0: ticked(second + 1), 1: ticked(1)}, float(second))
    assert [1] == [silence.local_rank for silence in found]
    assert 11.0 == one.silence_s(1, 11.0)
    assert 0.0 == one.silence_s(0, 11.0)
    assert one.is_half_over(1, 11.0)
    assert not one.is_half_over(0, 11.0)
    assert (0, 1) == one.ticking


@pytest.mark.parametrize(
    ("silence", "words"),
    [
        (Silence(0, 12.34, 10.0, STEP), "no progress for 12 s (limit 10 s)"),
        (Silence(0, 2.0, 1.5, START), "no first step for 2.0 s (limit 1.5 s)"),
        (Silence(0, 2.0, 1.5, "section eval"), "no progress in section eval for 2.0 s (limit 1.5 s)"),
        (Silence(0, 2.0, 1.5, STEP, "eval", 4), "in section eval for 2.0 s (limit 1.5 s)"),
    ],
)
def test_words(silence: Silence, words: str) -> None:
    """What is wrong, for how long, and what was allowed."""
    assert words == silence_text(silence)


def test_the_bound_of_patience_with_a_worker_suspected_in_vain() -> None:
    """After many suspicions it may be silent for 64 times as long, not a second less or more."""
    one = watch()
    one.check({0: ticked(1)}, 0)
    for _ in range(7):
        one.suspected_in_vain(0)
    assert () == after(one, ticked(1), 639, 1)
    ((_, seconds, limit, *_),) = after(one, ticked(1), 640, 640)
    assert (640.0, 640.0) == (seconds, limit)


def test_sections_have_more_time_as_well_after_a_suspicion_in_vain() -> None:
    """Twice their own limit after the first one, counted from then."""
    one = watch()
    after(one, ticked(1, LIMITED, count=1), 50)
    one.suspected_in_vain(50)
    assert () == after(one, ticked(1, LIMITED, count=1), 249, 51)
    ((_, seconds, limit, _, section, number),) = after(one, ticked(1, LIMITED, count=1), 250, 250)
    assert (200.0, 200.0, "eval", 1) == (seconds, limit, section, number)


def test_half_of_the_time_is_over_at_its_half() -> None:
    """Not a moment before; a worker that nobody has seen counts from the start of the round."""
    one = watch()
    one.check({0: ticked(1)}, 1.0)
    assert [False, True] == [one.is_half_over(0, now) for now in (5.9, 6.0)]
    assert (1.0, 0.0) == (one.since(0), one.since(7))
    assert (ticked(1), Sign()) == (one.sign(0), one.sign(7))


def test_ticks_between_two_looks_are_all_counted() -> None:
    """The time before the first one is measured once, however many follow it at once."""
    one = watch()
    one.check({0: ticked(3)}, 4.0)
    assert {START: Length(4.0, 1)} == one.lengths
    one.check({0: ticked(8)}, 6.0)
    assert Length(2.0, 5) == one.lengths[STEP]
    one.check({0: ticked(8, EVAL, count=1)}, 7.0)
    assert Length(2.0, 6) == one.lengths[STEP]


@pytest.mark.parametrize(("gap", "blamed"), [(4.9, True), (5.0, False)])
def test_a_look_that_comes_late_blames_nobody(gap: float, blamed: bool) -> None:
    """Late is a quarter of the limit, but no less than the least gap."""
    one = watch()
    after(one, ticked(1), 9)
    assert blamed is bool(one.check({0: ticked(1)}, 9 + gap))


@pytest.mark.parametrize(("gap", "blamed"), [(59.9, True), (60.0, False)])
def test_a_minute_without_a_look_is_late_for_any_limit(gap: float, blamed: bool) -> None:
    """However long the limit is."""
    one = watch(HangOptions(timeout=1000.0))
    after(one, ticked(1), 990)
    assert blamed is bool(one.check({0: ticked(1)}, 990 + gap))


def test_where_a_worker_is() -> None:
    """In its innermost section, else before or after its first tick."""
    assert (None, START) == (Sign().section, Sign().kind)
    assert STEP == ticked(1).kind
    both = ticked(0, LIMITED, Section(2, "inner", None))
    assert ("inner", "section inner") == (both.section, both.kind)


def test_who_is_still_there() -> None:
    """Outside of a section's own limit any sign of life shows that a worker is elsewhere."""
    silence = Silence(0, 20.0, 10.0, STEP)
    assert is_still(silence, ticked(1), ticked(1))
    assert not is_still(silence, ticked(1), ticked(2))
    assert not is_still(silence, ticked(1), ticked(1, EVAL))
    limited = Silence(0, 20.0, 10.0, STEP, "eval", 1)
    assert not is_still(limited, ticked(1, LIMITED), ticked(1))


def test_earlier_rounds_and_this_one_tell_who_ticks() -> None:
    """In the order of their ranks; who shows nothing is not among them."""
    one = watch(ticking=(3,))
    one.check({1: ticked(1), 0: Sign(), 2: Sign(0, 1)}, 1.0)
    assert (1, 3) == one.ticking


def test_from_ten_seconds_on_they_are_told_whole() -> None:
    """Below that with one decimal."""
    assert "no progress for 10 s (limit 9.9 s)" == silence_text(Silence(0, 10.0, 9.9, STEP))


def test_a_short_pause_between_two_looks_is_learned_from() -> None:
    """As long as it is less than a quarter of the limit: then nobody was stopped, the loop was only busy."""
    one = watch(HangOptions(timeout=100.0))
    after(one, ticked(1), 3)
    one.check({0: ticked(2)}, 13.0)
    one.check({0: ticked(3)}, 14.0)
    assert STEP in one.lengths


def test_the_nearest_of_all_limits_is_half_over_first() -> None:
    """In a section without a limit, inside of one with a limit, the time between steps holds as well."""
    one = watch()
    assert () == after(one, ticked(1, LIMITED, Section(2, "inner", None), count=2), 4)
    assert (False, True) == (one.is_half_over(0, 4.9), one.is_half_over(0, 5.0))


@pytest.mark.parametrize(("gap", "learned"), [(10.0, Length(10.0, 1)), (24.9, Length(24.9, 1)), (25.0, None)])
def test_a_pause_is_learned_from_up_to_a_quarter_of_the_limit(gap: float, learned: Length | None) -> None:
    """From then on nobody knows what the worker did meanwhile."""
    one = watch(HangOptions(timeout=100.0))
    one.check({0: ticked(1)}, 0.0)
    one.check({0: ticked(2)}, gap)
    assert learned == one.lengths.get(STEP)


def test_a_late_look_forgives_all_workers() -> None:
    """One for whose limit it is late shows that nobody looked at the others either."""
    one = watch()
    signs = {0: ticked(1, LIMITED), 1: ticked(1)}
    for second in range(9):
        one.check(signs, float(second))
    assert () == one.check(signs, 14.0)


def test_the_first_sign_of_a_worker_measures_its_start() -> None:
    """However late somebody looked: the start of the round is known."""
    one = watch()
    one.check({0: ticked(1)}, 60.0)
    assert {START: Length(60.0, 1)} == one.lengths


def test_a_section_before_the_first_step_is_watched_only_where_steps_are_expected() -> None:
    """Who has never ticked may never do it: a section without a limit is then no place to be missed in."""
    here = Sign(0, 1, None, (EVAL,))
    assert () == after(watch(), here, 100)
    assert after(watch(ticking=(0,)), here, 100)
