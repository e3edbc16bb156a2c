"""Order traffic under every fault we can make; the seed that failed is named with the command that runs it again.

`make test` runs one round of about three minutes; `make soak MINUTES=60` the long form, for every plugin and delivery.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.fault.course import KILLING, LASTING, LINKS, NETWORK, ROUND_S, Kind, counted, course
from tests.fault.soak import Soak

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fault.soak import Report

MINUTES = float(os.environ.get("CDCWATCH_SOAK_MINUTES", "60"))
WAYS = [
    ("wal2json", "exactly_once"),
    ("pgoutput", "exactly_once"),
    ("wal2json", "at_least_once"),
    ("pgoutput", "at_least_once"),
]
MOST_GROWTH_MIB = 48
MOST_MORE_DESCRIPTORS = 24
MOST_MORE_THREADS = 12


def test_a_course_is_its_seed_s_alone_and_holds_every_fault() -> None:
    rounds = course(7, 15)
    assert rounds == course(7, 15) != course(8, 15)
    assert [one.lasts for one in rounds] == [False, True, True, False, True]
    for one in rounds:
        assert counted([one]) == {**(LASTING if one.lasts else KILLING), **dict.fromkeys(NETWORK, len(LINKS))}
        assert all(0 <= fault.at_s <= ROUND_S for fault in one.faults)
    assert KILLING[Kind.KILL] + KILLING[Kind.SECOND] + KILLING[Kind.POSTGRES] + KILLING[Kind.BROKER] >= 20


def judge(report: Report) -> None:
    assert report.sightings > 10
    assert report.closes > 500
    for one in report.growth:
        assert one.after.rss_mib - one.before.rss_mib <= MOST_GROWTH_MIB, one
        assert one.after.descriptors - one.before.descriptors <= MOST_MORE_DESCRIPTORS, one
        assert one.after.threads - one.before.threads <= MOST_MORE_THREADS, one


def test_nothing_lost_nothing_twice_never_early(tmp_path: Path) -> None:
    report = Soak(
        random.randrange(10**6), ROUND_S / 60, plugin="wal2json", delivery="exactly_once", folder=tmp_path
    ).run()
    judge(report)
    assert report.kills >= 20


@pytest.mark.soak
@pytest.mark.parametrize(("plugin", "delivery"), WAYS)
def test_the_long_form(tmp_path: Path, plugin: str, delivery: str) -> None:
    minutes = max(3 * ROUND_S / 60, MINUTES / len(WAYS))  # a round that kills, and two that one process outlives
    judge(Soak(random.randrange(10**6), minutes, plugin=plugin, delivery=delivery, folder=tmp_path).run())
