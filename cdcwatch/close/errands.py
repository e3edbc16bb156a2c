"""The threads of `close.action = "claim"`: some call the outside, one records what it answered and takes up what waits.

A claim is in the database before it is here, and leaves here only once its answer is recorded or somebody else may take
it. So a process that dies loses nothing: another instance makes the same attempt again, with the same key.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcwatch import failpoints
from cdcwatch.close.attempt import Answer, Called, delay_s, is_over
from cdcwatch.close.claim import Ended
from cdcwatch.close.outcome import Outcome
from cdcwatch.close.workers import RECONNECT, log_mistake
from cdcwatch.errors import CdcwatchError
from cdcwatch.instant import NEGATIVE_INFINITY_US
from cdcwatch.log import NamingThread, told_of
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.close.attempt import Claim
    from cdcwatch.close.claim import ClaimTable, Recorded
    from cdcwatch.close.clock import Clock
    from cdcwatch.close.outside import Outside
    from cdcwatch.close.workers import CloseObserver

_log = logging.getLogger(__name__)

POLL_US: Final = 1_000_000
"""How often the claims that wait for their next attempt are looked for."""
ROOM_WAIT_S: Final = 1.0
_COMPLAINT_US: Final = 10_000_000


class _Result(NamedTuple):
    claim: Claim
    called: Called | None
    """None: it was not called."""


class Errands:
    """Claimed orders, from their claim to the record. `claimed` and `wait_for_room` are for the close workers."""

    def __init__(
        self,
        outside: Outside,
        clock: Clock,
        observer: CloseObserver,
        *,
        concurrency: int,
        batch_rows: int,
        attempts: int,
        newest_start_s: float,
        failed_status: str,
    ) -> None:
        """`newest_start_s`: how old a claim may be when its call begins, so that it ends before others may take it."""
        self._outside, self._clock, self._observer = outside, clock, observer
        self._batch_rows, self._attempts = batch_rows, attempts
        self._failed_status = failed_status
        self._newest_start_us = int(newest_start_s * 1_000_000)
        self._few = 2 * concurrency
        self._lock = threading.Lock()
        self._has_claims = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._has_results = threading.Condition(self._lock)
        self._queue: deque[Claim] = deque()
        self._calling = 0
        self._results: list[_Result] = []
        self._is_stopping = False
        self._stopped = threading.Event()
        self._polled_us: int | None = None
        self._complained_us: int | None = None
        self._is_doubtful = False
        """The last record's answer was lost: what is not found may be recorded."""
        self.last_error = ""
        self._table: ClaimTable | None = None
        self._threads = [
            NamingThread(target=self._call_on, name=f"cdcwatch-call-{number}", daemon=True)
            for number in range(concurrency)
        ]
        self._recorder = NamingThread(target=self._record_on, name="cdcwatch-record", daemon=True)

    def start(self, make_table: Callable[[], ClaimTable]) -> None:
        """Starts the threads; the table connects by itself, and again when its connection breaks."""
        self._table = make_table()
        for thread in (*self._threads, self._recorder):
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Calls no more, waits for the calls under way and records them. False when that did not end in time."""
        with self._lock:
            self._is_stopping = True
            self._stopped.set()
            for condition in (self._has_claims, self._has_room, self._has_results):
                condition.notify_all()
        until_us = self._clock.monotonic_us() + int(timeout_s * 1_000_000)
        threads = [thread for thread in (*self._threads, self._recorder) if thread.ident is not None]
        for thread in threads:
            thread.join(max(0.0, (until_us - self._clock.monotonic_us()) / 1_000_000))
        if any(thread.is_alive() for thread in threads):
            return False
        self._outside.close()
        return True

    @property
    def are_alive(self) -> bool:
        """Whether every thread runs."""
        return self._recorder.is_alive() and all(thread.is_alive() for thread in self._threads)

    def __len__(self) -> int:
        """Claims that wait to be called or recorded, or are being called."""
        with self._lock:
            return len(self._queue) + self._calling + len(self._results)

    # -- for the close workers ---------------------------------------------------------------------------------------

    def wait_for_room(self) -> bool:
        """Whether another batch may be claimed: what is claimed must be called long before others may take it."""
        with self._lock:
            if not self._has_free() and not self._is_stopping:
                self._has_room.wait(ROOM_WAIT_S)
            return self._has_free()

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Takes them in."""
        with self._lock:
            self._queue.extend(claims)
            self._has_claims.notify(len(claims))

    def _has_free(self) -> bool:
        # Answers that can't be recorded hold claims up too.
        return len(self._queue) < self._few and len(self._results) < 2 * self._batch_rows and not self._is_stopping

    # -- the threads that call ---------------------------------------------------------------------------------------

    def _call_on(self) -> None:
        while (claim := self._next_claim()) is not None:
            called: Called | None = None
            began_us = self._clock.monotonic_us()
            try:
                if began_us - claim.taken_us <= self._newest_start_us:
                    called = self._outside.call(claim)
                    failpoints.reached("claim.answered")
                    self._observer.called(called.answer, self._clock.monotonic_us() - began_us)
            except Exception as error:  # noqa: BLE001 - a mistake of ours must end neither the thread nor the claim
                log_mistake(_log, "a call failed", error)
            finally:
                with self._lock:
                    self._calling -= 1
                    self._results.append(_Result(claim, called))
                    self._has_results.notify()

    def _next_claim(self) -> Claim | None:
        with self._lock:
            while not self._queue and not self._is_stopping:
                self._has_claims.wait()
            if self._is_stopping:
                return None
            claim = self._queue.popleft()
            self._calling += 1
            if len(self._queue) < self._few:
                self._has_room.notify_all()
            return claim

    # -- the thread that records -------------------------------------------------------------------------------------

    def _record_on(self) -> None:
        table, failures = self._table, 0
        if table is None:
            raise RuntimeError("it is made before the thread")
        try:
            while not self._is_done():
                results = self._next_results()
                try:
                    table.connect()
                    self._record(table, results)
                    results = []
                    self._take_over(table)
                except CdcwatchError as error:
                    failures += 1
                    self._lose(table, results, error)
                    self._pause(failures)
                except Exception as error:  # noqa: BLE001 - see `Workers`
                    failures += 1
                    log_mistake(_log, "recording claims failed", error)
                    self._lose(table, results, CdcwatchError("recording claims failed", remedy="see the log"))
                    self._pause(failures)
                else:
                    failures, self.last_error = 0, ""
                    with self._lock:
                        self._has_room.notify_all()
        finally:
            table.disconnect()

    def _is_done(self) -> bool:
        with self._lock:
            return self._is_stopping and not self._calling and not self._results and not self._queue

    def _next_results(self) -> list[_Result]:
        """What is there to be recorded, at most a poll later; at the end, what was never called too."""
        with self._lock:
            if not self._results and not self._is_stopping:
                self._has_results.wait(POLL_US / 1_000_000)
            if self._is_stopping:
                self._results += [_Result(claim, None) for claim in self._queue]
                self._queue.clear()
                if not self._results and self._calling:
                    self._has_results.wait(POLL_US / 1_000_000)
            results, self._results = self._results[: self._batch_rows], self._results[self._batch_rows :]
            return results

    def _record(self, table: ClaimTable, results: Sequence[_Result]) -> None:
        """Those of one kind in one statement. To do it again is safe: the claims' ids tell what was done."""
        began_us = self._clock.monotonic_us()
        done = [Ended(claim) for claim, called in results if called is not None and called.answer is Answer.SUCCEEDED]
        if done:
            recorded = table.record_closed(done)
            self._put_back(recorded.held, Answer.SUCCEEDED)
            self._tell(recorded, began_us)
            self._record_attempts(table, [(one, False, None) for one in recorded.refused])
        self._record_attempts(
            table,
            [
                (Ended(claim, called.error), is_over(claim.attempt, self._attempts, called.answer), called)
                for claim, called in results
                if called is not None and called.answer is not Answer.SUCCEEDED
            ],
        )
        if untouched := [Ended(claim) for claim, called in results if called is None]:
            table.hand_back(untouched)
        self._is_doubtful = False

    def _record_attempts(self, table: ClaimTable, failed: Sequence[tuple[Ended, bool, Called | None]]) -> None:
        over = [one for one, ends, _ in failed if ends or one.claim.attempt >= self._attempts]
        again = [
            one._replace(delay_s=self._delay_s(one.claim.attempt, called))
            for one, ends, called in failed
            if not ends and one.claim.attempt < self._attempts
        ]
        if again:
            self._count(Outcome.FENCED, table.record_retry(again))
            self._complain(again)
        if over:
            recorded = table.record_failed(over)
            self._put_back(recorded.held, Answer.REFUSED)
            self._count(Outcome.FENCED, recorded.fenced)
            self._count(Outcome.PAID, recorded.overtaken)
            if recorded.refused:
                # The database refuses even the failed status: the claim waits, and the attempt is made once more.
                waiting = [one._replace(delay_s=self._delay_s(one.claim.attempt, None)) for one in recorded.refused]
                table.record_retry(waiting)
                self._complain(waiting)
            given_up = len(over) - recorded.fenced - recorded.overtaken - len(recorded.refused) - len(recorded.held)
            if given_up:
                self._observer.given_up(given_up)
                _log.warning(
                    "%s given up, and set to %s; see `cdcwatch events --dead`: %s",
                    counted(given_up, "order"),
                    self._failed_status,
                    over[-1].error,
                    extra={"reason": over[-1].error, "count": given_up},
                )

    def _tell(self, recorded: Recorded, began_us: int) -> None:
        outcomes = {Outcome.CLOSED: len(recorded.closed)}
        if recorded.overtaken:
            outcomes[Outcome.PAID] = recorded.overtaken
        if recorded.fenced:
            outcomes[Outcome.FOUND_CLOSED if self._is_doubtful else Outcome.FENCED] = recorded.fenced
        lateness_us = [one.lateness_us for one in recorded.closed if one.deadline_us != NEGATIVE_INFINITY_US]
        self._observer.batch_settled(outcomes, lateness_us, self._clock.monotonic_us() - began_us)

    def _count(self, outcome: Outcome, count: int) -> None:
        if count:
            self._observer.batch_settled({outcome: count}, [], 0)

    def _take_over(self, table: ClaimTable) -> None:
        now_us = self._clock.monotonic_us()
        if self._polled_us is not None and now_us - self._polled_us < POLL_US:
            return
        with self._lock:
            if not self._has_free():
                return
        claims, stuck = table.take_over(self._batch_rows)
        # A full batch: there may be more.
        self._polled_us = None if len(claims) == self._batch_rows else now_us
        if claims:
            self.claimed(claims)
        if stuck:
            _log.warning(
                "%s of a process that was silent for too long taken over",
                counted(stuck, "claim"),
                extra={"count": stuck},
            )

    def _put_back(self, held: Sequence[Ended], answer: Answer) -> None:
        """To be recorded once whoever holds the rows has let them go."""
        with self._lock:
            self._results += [_Result(one.claim, Called(answer, one.error)) for one in held]

    def _lose(self, table: ClaimTable, results: Sequence[_Result], error: CdcwatchError) -> None:
        if not self.last_error:
            _log.warning("recording claims waits for the database: %s", error, extra=told_of(error))
        self.last_error, self._is_doubtful = str(error), True
        table.disconnect()
        self._observer.database_lost(error)
        with self._lock:
            self._results = [*results, *self._results]

    def _complain(self, again: Sequence[Ended]) -> None:
        now_us = self._clock.monotonic_us()
        if self._complained_us is None or now_us - self._complained_us >= _COMPLAINT_US:
            self._complained_us = now_us
            _log.warning(
                "%s failed, tried again later; the last: %s",
                counted(len(again), "attempt"),
                again[-1].error,
                extra={"reason": again[-1].error},
            )

    @staticmethod
    def _delay_s(attempt: int, called: Called | None) -> float:
        return delay_s(attempt, called.retry_after_s if called else None, random.random())  # noqa: S311 - jitter

    def _pause(self, failures: int) -> None:
        self._stopped.wait(RECONNECT.delay_us(failures, random.random()) / 1_000_000)  # noqa: S311 - jitter, no secret
