from collections import Counter

import pytest

from cdcwatch.close.closer import Closer
from cdcwatch.close.outcome import Closed, CloseReport, CurrentRow, Outcome, Unclosed
from cdcwatch.close.retries import FAILED_BACKOFF, GIVEN_UP_BACKOFF, LOCKED_BACKOFF, Backoff
from cdcwatch.deadline.schedule import Due, Schedule
from cdcwatch.instant import NEGATIVE_INFINITY_US

NOW_US = 850_000_000_000_000


@pytest.fixture
def closer():
    return Closer(Schedule(window_end_us=NOW_US + 10**9), random=lambda: 0.999_999)


def take_one(closer, key=1, deadline_us=NOW_US):
    closer.apply([(key, deadline_us, 0)])
    (due,) = closer.take(NOW_US, 0, 10)
    return due


def report(due, outcome, row=None):
    return CloseReport(unclosed=[Unclosed(due, outcome, row)])


def test_updates_are_taken_in_order(closer):
    assert closer.apply([(1, NOW_US + 5, 0), (2, NOW_US, 0), (1, NOW_US + 9, 1), (3, None, 0)]) == NOW_US
    assert closer.apply([(2, None, 1)]) is None
    assert closer.take(NOW_US + 8, 0, 10) == []
    assert closer.delay_us(NOW_US + 8, 0) == 1
    assert closer.take(NOW_US + 9, 0, 10) == [Due(1, NOW_US + 9, 1)]
    assert closer.delay_us(NOW_US, 0) is None


def test_a_closed_order_is_done(closer):
    due = take_one(closer)
    settled = closer.settle(CloseReport(closed=[Closed(1, due.deadline_us, 1, NOW_US + 70)]), 0)
    assert settled.outcomes == Counter({Outcome.CLOSED: 1})
    assert settled.lateness_us == [70]
    assert not settled.stalled
    assert len(closer) == 0


def test_the_lateness_of_minus_infinity_says_nothing(closer):
    closer.apply([(1, NEGATIVE_INFINITY_US, 0)])
    assert closer.take(NOW_US, 0, 1)
    settled = closer.settle(CloseReport(closed=[Closed(1, NEGATIVE_INFINITY_US, 1, NOW_US)]), 0)
    assert settled.lateness_us == []


def test_what_moved_is_armed_again(closer):
    due = take_one(closer)
    closer.settle(report(due, Outcome.MOVED, CurrentRow("pending", 4, NOW_US + 100, False)), 0)
    assert closer.schedule.get(1) == Due(1, NOW_US + 100, 4)


def test_a_version_that_moved_is_due_at_once(closer):
    due = take_one(closer)
    closer.settle(report(due, Outcome.MOVED, CurrentRow("pending", 4, NOW_US, True)), 0)
    assert closer.take(NOW_US, 0, 10) == [Due(1, NOW_US, 4)]


@pytest.mark.parametrize("outcome", [Outcome.MOVED, Outcome.NOT_DUE, Outcome.LOCKED, Outcome.FAILED])
def test_the_streams_word_wins_over_what_was_read_again(closer, outcome):
    due = take_one(closer)
    closer.apply([(1, NOW_US + 500, 9)])
    closer.settle(report(due, outcome, CurrentRow("pending", 4, NOW_US + 100, False)), 0)
    assert closer.schedule.get(1) == Due(1, NOW_US + 500, 9)
    assert closer.retrying == 0


@pytest.mark.parametrize("update", [(1, None, 1), (1, NOW_US + 5, 1)])
def test_the_streams_word_ends_a_retry(closer, update):
    due = take_one(closer)
    closer.settle(report(due, Outcome.LOCKED), 0)
    closer.apply([update])
    assert closer.retrying == 0
    assert closer.take(NOW_US, 10**12, 10) == []


@pytest.mark.parametrize("outcome", [Outcome.PAID, Outcome.CLEARED, Outcome.ALREADY_CLOSED])
def test_an_end_is_an_end(closer, outcome):
    due = take_one(closer)
    closer.settle(report(due, outcome), 0)
    assert len(closer) == 0


def test_a_row_that_is_not_there_yet_is_looked_for_a_while_and_counted_once(closer):
    due = take_one(closer)
    counted, monotonic_us = Counter(), 0
    for _ in range(100):
        counted.update(closer.settle(report(due, Outcome.GONE), monotonic_us).outcomes)
        pause_us = closer.delay_us(NOW_US, monotonic_us)
        if pause_us is None:
            break
        monotonic_us += pause_us
        assert closer.take(NOW_US, monotonic_us, 10) == [due]
    assert 10_000_000 < monotonic_us < 30_000_000
    assert counted[Outcome.GONE] == 1
    assert len(closer) == 0


def test_a_row_that_appears_is_closed_and_one_that_is_deleted_is_let_go(closer):
    for key in (1, 2):
        due = take_one(closer, key)
        closer.settle(report(due, Outcome.GONE), 0)
    closer.apply([(2, None, 0)])
    assert [one.key for one in closer.take(NOW_US, 10**7, 10)] == [1]
    settled = closer.settle(CloseReport(closed=[Closed(1, NOW_US, 1, NOW_US)]), 10**7)
    assert settled.outcomes == {Outcome.CLOSED: 1, Outcome.GONE: 1}, "each once, when it is certain"
    assert len(closer) == 0


@pytest.mark.parametrize("outcome", [Outcome.MOVED, Outcome.PAID, Outcome.CLEARED])
def test_a_row_older_than_the_streams_word_is_looked_at_again_for_a_while(closer, outcome):
    closer.apply([(1, NOW_US, 5)])
    (due,) = closer.take(NOW_US, 0, 10)
    older = CurrentRow("pending", 4, NOW_US + 100_000_000, False)
    counted, monotonic_us = Counter(), 0
    while closer.retrying or not monotonic_us:
        counted.update(closer.settle(report(due, outcome, older), monotonic_us).outcomes)
        pause_us = closer.delay_us(NOW_US, monotonic_us) if closer.retrying else 0
        monotonic_us += pause_us
        assert closer.take(NOW_US, monotonic_us, 10) == ([due] if pause_us else [])
    assert monotonic_us > 10_000_000
    assert counted[outcome] == 1
    assert len(closer) == (outcome is Outcome.MOVED), "the row's word in the end"


def test_what_was_seen_in_the_table_and_is_not_there_is_gone(closer):
    closer.load_found([Due(1, NOW_US, 0)], NOW_US)
    (due,) = closer.take(NOW_US, 0, 10)
    closer.settle(report(due, Outcome.GONE), 0)
    other = take_one(closer, 2)
    closer.settle(report(other, Outcome.LOCKED), 0)
    assert closer.take(NOW_US, 10**7, 10) == [other]
    closer.settle(report(other, Outcome.GONE), 10**7)
    assert len(closer) == 0


def test_a_held_order_is_tried_again_ever_more_rarely(closer):
    due = take_one(closer)
    monotonic_us = 0
    pauses = []
    for _ in range(12):
        closer.settle(report(due, Outcome.LOCKED), monotonic_us)
        pause_us = closer.delay_us(NOW_US, monotonic_us)
        assert closer.take(NOW_US + 10**12, monotonic_us + pause_us - 1, 10) == []
        monotonic_us += pause_us
        assert closer.take(NOW_US - 10**12, monotonic_us, 10) == [due]
        pauses.append(pause_us)
    assert pauses[0] == pytest.approx(LOCKED_BACKOFF.first_us, rel=0.01)
    assert pauses[1] == pytest.approx(2 * pauses[0], rel=0.01)
    assert pauses[-1] == pytest.approx(LOCKED_BACKOFF.longest_us, rel=0.01)


def test_a_failing_order_waits_longer_than_a_held_one(closer):
    due = take_one(closer)
    closer.settle(report(due, Outcome.FAILED), 0)
    assert closer.delay_us(NOW_US, 0) == pytest.approx(FAILED_BACKOFF.first_us, rel=0.01)


def failing_until_given_up(closer, *, is_tables_fault=False):
    """How many failures it took, and the pause after the last of them."""
    due, at_us = take_one(closer), 0
    for failures in range(1, 30):
        failed = Unclosed(due, Outcome.FAILED, None, "SQLSTATE P0001", is_tables_fault)
        settled = closer.settle(CloseReport(unclosed=[failed]), at_us)
        pause_us = closer.delay_us(NOW_US, at_us)
        if settled.given_up:
            assert settled.given_up == [failed]
            return failures, pause_us, at_us + pause_us
        at_us += pause_us
        assert closer.take(NOW_US, at_us, 1) == [due]
    return None


def test_an_order_that_fails_again_and_again_is_given_up_once_and_tried_again_seldom():
    closer = Closer(Schedule(window_end_us=10**18), random=lambda: 0.999_999, attempts=3)
    failures, pause_us, at_us = failing_until_given_up(closer)
    assert failures == 3
    assert pause_us == pytest.approx(GIVEN_UP_BACKOFF.first_us, rel=0.01)
    (due,) = closer.take(NOW_US, at_us, 1)
    settled = closer.settle(report(due, Outcome.FAILED), at_us)
    assert settled.given_up == [], "told already"
    assert closer.delay_us(NOW_US, at_us) == pytest.approx(GIVEN_UP_BACKOFF.first_us, rel=0.01)


def test_an_order_of_which_no_dead_letter_could_be_left_fails_once_more_first():
    closer = Closer(Schedule(window_end_us=10**18), random=lambda: 0.999_999, attempts=3)
    *_, at_us = failing_until_given_up(closer)
    due = Due(1, NOW_US, 0)
    closer.untold([Unclosed(due, Outcome.FAILED)], at_us)
    at_us += closer.delay_us(NOW_US, at_us)
    assert closer.take(NOW_US, at_us, 1) == [due]
    assert closer.settle(report(due, Outcome.FAILED), at_us).given_up


def test_what_fails_for_the_tables_sake_is_never_given_up():
    closer = Closer(Schedule(window_end_us=10**18), random=lambda: 0.999_999, attempts=3)
    assert failing_until_given_up(closer, is_tables_fault=True) is None
    assert closer.retrying == 1


def test_being_held_is_no_failure():
    closer = Closer(Schedule(window_end_us=10**18), random=lambda: 0.999_999, attempts=2)
    due = take_one(closer)
    for at_us, outcome in enumerate([Outcome.FAILED, *[Outcome.LOCKED] * 9, Outcome.FAILED]):
        assert not closer.settle(report(due, outcome), at_us).given_up
    assert closer.settle(report(due, Outcome.FAILED), 20).given_up


@pytest.mark.parametrize("echo_first", [True, False])
@pytest.mark.parametrize(
    ("outcome", "row", "counted"),
    [
        (Outcome.ALREADY_CLOSED, CurrentRow("expired", 1, NOW_US, True), Outcome.FOUND_CLOSED),
        (Outcome.ALREADY_CLOSED, CurrentRow("expired", 2, NOW_US, True), Outcome.ALREADY_CLOSED),
        (Outcome.PAID, CurrentRow("paid", 1, NOW_US, True), Outcome.PAID),
        (Outcome.GONE, None, Outcome.GONE),
    ],
)
def test_an_unknown_end_is_cleared_up_by_the_row_itself(closer, outcome, row, counted, echo_first):
    due = take_one(closer)
    if echo_first:
        closer.apply([(1, None, 1)])
    closer.doubt([due], 0)
    closer.apply([(1, None, 1)])  # closed, or paid: the stream's word is the same for both
    assert closer.take(NOW_US, 0, 10) == [due]
    assert closer.settle(report(due, outcome, row), 0).outcomes[counted] == 1
    assert (len(closer), closer.retrying) == (0, 0)


def test_where_closes_delete_an_order_that_is_gone_after_an_unknown_end_was_closed():
    closer = Closer(Schedule(window_end_us=NOW_US + 10**9), random=lambda: 0.999_999, deletes=True)
    closer.load_found([Due(1, NOW_US, 0)], NOW_US)
    due = take_one(closer)
    closer.doubt([due], 0)
    closer.apply([(1, None, 0)])
    assert closer.take(NOW_US, 0, 10) == [due]
    assert closer.settle(report(due, Outcome.GONE, None), 0).outcomes == {Outcome.FOUND_CLOSED: 1, Outcome.CLOSED: 0}
    assert closer.settle(report(take_one(closer, 2), Outcome.GONE, None), 0).outcomes[Outcome.GONE] == 0
    closer.apply([(2, None, 0)])
    assert closer.settle(CloseReport(), 0).outcomes[Outcome.GONE] == 1
    assert len(closer) == 0


def test_an_unknown_end_of_an_order_that_has_a_new_deadline_is_of_no_interest(closer):
    due = take_one(closer)
    closer.apply([(1, NOW_US + 5, 1)])
    closer.doubt([due], 0)
    assert (len(closer), closer.retrying) == (1, 0)
    other = take_one(closer, 2)
    closer.doubt([other], 0)
    closer.apply([(2, NOW_US + 5, 1)])
    assert (len(closer), closer.retrying) == (2, 0)


def test_what_somebody_else_closed_is_no_close_of_ours(closer):
    due = take_one(closer)
    row = CurrentRow("expired", 1, NOW_US, True)
    assert closer.settle(report(due, Outcome.ALREADY_CLOSED, row), 0).outcomes[Outcome.ALREADY_CLOSED] == 1


def test_second_attempts_share_no_batch_with_first_ones_and_neither_starves(closer):
    for key in range(4):
        closer.settle(report(take_one(closer, key), Outcome.FAILED), 0)
    closer.apply([(key, NOW_US, 0) for key in range(100, 104)])
    late_us = 10**12
    batches = [[due.key for due in closer.take(NOW_US, late_us, 2)] for _ in range(5)]
    assert batches == [[0, 1], [100, 101], [2, 3], [102, 103], []]


def test_a_batch_of_nothing_but_fresh_failures_stalls(closer):
    due, other = take_one(closer, 1), take_one(closer, 2)
    failed = report(due, Outcome.FAILED)
    assert closer.settle(failed, 0).stalled
    assert not closer.settle(failed, 0).stalled  # known by now: it says nothing about the others
    mixed = report(other, Outcome.FAILED)
    mixed.closed.append(Closed(3, NOW_US, 1, NOW_US))
    assert not closer.settle(mixed, 0).stalled
    assert not closer.settle(CloseReport(), 0).stalled


def test_a_batch_given_back_is_due_again(closer):
    due = take_one(closer)
    closer.give_back([due], 0)
    assert closer.take(NOW_US, 0, 10) == [due]


def test_a_second_attempt_given_back_keeps_its_count(closer):
    due = take_one(closer)
    closer.settle(report(due, Outcome.LOCKED), 0)
    (again,) = closer.take(NOW_US, 10**6, 10)
    closer.give_back([again], 10**6)
    closer.give_back([again], 10**6)
    assert closer.take(NOW_US, 10**6, 10) == [due]
    assert closer.take(NOW_US, 10**6, 10) == []
    closer.settle(report(due, Outcome.LOCKED), 10**6)
    assert closer.delay_us(NOW_US, 10**6) == pytest.approx(2 * LOCKED_BACKOFF.first_us, rel=0.01)


def test_the_streams_word_stands_against_a_batch_given_back(closer):
    due = take_one(closer)
    closer.apply([(1, NOW_US + 7, 2)])
    closer.give_back([due], 0)
    assert closer.schedule.get(1) == Due(1, NOW_US + 7, 2)


def test_what_is_loaded_gives_way_to_the_stream_and_to_retries(closer):
    closer.apply([(1, NOW_US + 3, 5)])
    locked = take_one(closer, 2)
    closer.settle(report(locked, Outcome.LOCKED), 0)
    loaded = [Due(1, NOW_US, 0), Due(2, NOW_US, 0), Due(3, NOW_US + 2, 0), Due(4, NOW_US + 10**10, 0)]
    assert closer.load(loaded) == NOW_US + 2
    assert closer.schedule.get(1) == Due(1, NOW_US + 3, 5)
    assert {key for key in (1, 2, 3, 4) if key in closer.schedule} == {1, 3}
    assert len(closer) == 3


def test_an_emptied_table_leaves_nothing(closer):
    locked = take_one(closer, 2)
    closer.settle(report(locked, Outcome.LOCKED), 0)
    closer.apply([(1, NOW_US, 0)])
    closer.clear()
    assert len(closer) == 0
    assert closer.take(NOW_US, 10**12, 10) == []


def test_stale_retries_are_bounded(closer):
    due = take_one(closer)
    for attempt in range(1000):
        closer.settle(report(due, Outcome.LOCKED), attempt)
        closer.apply([(1, NOW_US, 0)])
        closer.take(NOW_US, 0, 10)
    assert len(closer._retries._heap) <= 64 + 2


def test_jitter_spreads_what_was_refused_together():
    backoff = Backoff(1_000, 1_000_000)
    assert backoff.delay_us(1, 0.0) == 250
    assert backoff.delay_us(10**6, 0.0) == 250_000
    assert backoff.delay_us(4, 0.5) == int(8_000 * 0.625)


def test_what_was_not_tried_alone_comes_back_at_once_in_its_own_lane(closer):
    closer.apply([(1, NOW_US, 0), (2, NOW_US, 0)])
    first, second = closer.take(NOW_US, 0, 10)
    settled = closer.settle(
        CloseReport(unclosed=[Unclosed(first, Outcome.FAILED), Unclosed(second, Outcome.DEFERRED)]), 0
    )
    assert not settled.stalled
    assert closer.retrying == 1
    assert closer.take(NOW_US, 0, 10) == [second]
    assert closer.take(NOW_US, 10**6, 10) == [first]
    # One that has failed before does not come back among first attempts, and its attempts stay as they were.
    closer.settle(report(first, Outcome.DEFERRED), 10**6)
    assert first.key not in closer.schedule
    assert closer._retries.get(first.key).attempts == 1
    assert closer.take(NOW_US, 10**6, 10) == [first]


def test_the_sweep_finds_only_what_nobody_has_in_hand(closer):
    closer.apply([(1, NOW_US - 9, 0), (2, NOW_US + 10**6, 0), (3, NOW_US - 8, 0)])
    taken = closer.take(NOW_US, 0, 1)
    failed = Due(3, NOW_US - 8, 0)
    assert [due.key for due in taken] == [1]
    closer.take(NOW_US, 0, 1)
    closer.settle(report(failed, Outcome.FAILED), 0)
    overdue = [Due(key, NOW_US - 9, 0) for key in (1, 2, 3, 4)]
    beyond = Due(5, closer.schedule.window_end_us + 1, 0)
    assert [due.key for due in [*overdue, beyond] if not closer.knows(due, NOW_US)] == [2, 4]
    assert closer.load_found([*overdue, beyond], NOW_US) == 2
    assert closer.untried == 2
    assert {due.key for due in closer.take(NOW_US, 0, 10)} == {2, 4}
    closer.give_back(taken, 0)
    assert closer.knows(taken[0], NOW_US)


def test_recovered_is_what_the_sweep_found_and_a_close_confirmed(closer):
    dues = [Due(key, NOW_US - 9, 0) for key in range(1, 7)]
    assert closer.load_found(dues, NOW_US) == 6
    closer.apply([(6, None, 1)])  # the stream told of it after all
    first = closer.take(NOW_US, 0, 10)
    assert [due.key for due in first] == [1, 2, 3, 4, 5]
    closer.apply([(1, None, 1)])  # the echo of our own close comes before its answer
    closed = [Closed(1, NOW_US - 9, 1, NOW_US)]
    unclosed = [Unclosed(dues[1], Outcome.PAID), Unclosed(dues[2], Outcome.LOCKED), Unclosed(dues[3], Outcome.FAILED)]
    closer.settle(CloseReport(closed=closed, unclosed=unclosed), 0)
    assert (closer.recovered, closer.untried) == (1, 1)
    closer.doubt([dues[4]], 0)
    assert closer.untried == 0
    assert closer.found_but(stuck_since_us=-1) == (2, 1)
    assert closer.found_but(stuck_since_us=0) == (1, 2)
    closer.take(NOW_US, 10**9, 10)
    ours = Unclosed(dues[4], Outcome.ALREADY_CLOSED, CurrentRow("expired", 1, NOW_US - 9, True))
    closed = [Closed(3, NOW_US - 9, 1, NOW_US), Closed(4, NOW_US - 9, 1, NOW_US)]
    closer.settle(CloseReport(closed=closed, unclosed=[ours]), 10**9)
    assert closer.recovered == 4
    assert closer.found_but(0) == (0, 0)
    assert len(closer) == 0


def test_orders_of_the_stream_are_never_counted_as_recovered(closer):
    due = take_one(closer)
    closer.settle(report(due, Outcome.LOCKED), 0)
    assert closer.load_found([due], NOW_US) == 0
    assert closer.take(NOW_US, 10**9, 10) == [due]
    closer.settle(CloseReport(closed=[Closed(1, due.deadline_us, 1, NOW_US)]), 10**9)
    assert closer.recovered == 0


def test_a_claim_recovers_and_what_was_put_off_is_still_to_be_tried(closer):
    dues = [Due(key, NOW_US - 9, 0) for key in (1, 2)]
    closer.load_found(dues, NOW_US)
    taken = closer.take(NOW_US, 0, 10)
    closer.settle(CloseReport(claimed=[1], unclosed=[Unclosed(taken[1], Outcome.DEFERRED)]), 0)
    assert (closer.recovered, closer.untried) == (1, 1)
    assert not closer.knows(dues[0], NOW_US)
    assert closer.knows(dues[1], NOW_US)


def breaking_until_given_up(closer, keys, breaker, attempts_at_most=60):
    """Batches in their order, each broken that holds the breaker and closed otherwise; when the breaker was given up."""
    at_us, batches, given_up = 0, [], []
    closer.apply([(key, NOW_US, 0) for key in keys])
    while not given_up and len(batches) < attempts_at_most:
        batch = closer.take(NOW_US, at_us, 500)
        if not batch:
            pause_us = closer.delay_us(NOW_US, at_us)
            assert pause_us, "never at once after a doubt or two"
            at_us += pause_us
            continue
        batches.append([due.key for due in batch])
        if breaker in batches[-1]:
            given_up = closer.doubt(batch, at_us, broke=True)
        else:
            closer.settle(CloseReport(closed=[Closed(due.key, due.deadline_us, 1, NOW_US) for due in batch]), at_us)
    return batches, given_up, at_us


def test_what_breaks_the_connection_is_singled_out_and_given_up():
    closer = Closer(Schedule(window_end_us=10**18), random=lambda: 0.999_999, attempts=3)
    batches, given_up, at_us = breaking_until_given_up(closer, range(100), 25)
    assert [(one.due.key, one.outcome, one.error) for one in given_up] == [(25, Outcome.FAILED, "the connection broke")]
    assert [len(batch) for batch in batches if 25 in batch] == [100, 100, 12, 1, 1, 1]
    assert len(closer) == 1, "the others are closed"
    assert closer.delay_us(NOW_US, at_us) == pytest.approx(GIVEN_UP_BACKOFF.first_us, rel=0.01)
    at_us += GIVEN_UP_BACKOFF.first_us
    assert closer.doubt(closer.take(NOW_US, at_us, 500), at_us, broke=True) == [], "told already"
    closer.apply([(25, None, 1)])
    assert len(closer) == 0, "the stream's word is no echo of ours by now"


def test_a_break_untold_is_told_after_the_next_one():
    closer = Closer(Schedule(window_end_us=10**18), random=lambda: 0.999_999, attempts=3)
    _, given_up, at_us = breaking_until_given_up(closer, [1], 1)
    closer.untold(given_up, at_us)
    at_us += closer.delay_us(NOW_US, at_us)
    assert closer.doubt(closer.take(NOW_US, at_us, 500), at_us, broke=True) == given_up


def test_being_locked_by_its_own_broken_attempt_ends_no_suspicion():
    closer = Closer(Schedule(window_end_us=10**18), random=lambda: 0.999_999, attempts=3)
    due, at_us = take_one(closer), 0
    for broken in range(1, 4):
        assert len(closer.doubt([due], at_us, broke=True)) == (broken == 3)
        at_us += closer.delay_us(NOW_US, at_us)
        if broken < 3:
            assert closer.take(NOW_US, at_us, 10) == [due]
            closer.settle(report(due, Outcome.LOCKED), at_us)
            at_us += closer.delay_us(NOW_US, at_us)
            assert closer.take(NOW_US, at_us, 10) == [due]


def test_a_doubt_without_a_break_leads_to_no_suspicion():
    closer = Closer(Schedule(window_end_us=10**18), random=lambda: 0.999_999, attempts=2)
    closer.apply([(key, NOW_US, 0) for key in range(20)])
    for at_us in range(10):
        batch = closer.take(NOW_US, at_us, 500)
        assert len(batch) == 20
        assert closer.doubt(batch, at_us) == []


def test_closes_are_refused_while_the_table_s_fault_lasts_and_none_succeeds(closer):
    first, _second = take_one(closer, 1), take_one(closer, 2)
    assert closer.refused_since_us is None
    closer.settle(CloseReport(unclosed=[Unclosed(first, Outcome.FAILED, None, "SQLSTATE 42501", True)]), 100)
    assert closer.refused_since_us == 100
    closer.settle(CloseReport(closed=[Closed(2, NOW_US, 1, NOW_US)]), 200)
    assert closer.refused_since_us is None, "it was the order's own after all"


def test_an_order_s_own_refusal_is_no_refusal_of_all(closer):
    due = take_one(closer)
    closer.settle(CloseReport(unclosed=[Unclosed(due, Outcome.FAILED, None, "SQLSTATE P0001")]), 100)
    assert closer.refused_since_us is None
