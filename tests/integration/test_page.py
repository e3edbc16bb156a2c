"""The status page of a real service in a real browser: figures that move, nothing from elsewhere, for every reader."""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import Tab, chromium
from tests.oracle.traffic import Traffic
from tests.oracle.world import World
from tests.services import fresh_topic
from tests.several import SeveralWorld
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browser import Browser
    from tests.services import Database, Kafka

SHOTS = os.environ.get("CDCWATCH_SCREENSHOTS")
"""A folder to keep them in."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def world(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        world.listen()
        yield world


def status(world: World) -> dict[str, Any]:
    with urllib.request.urlopen(f"{world.address}/status", timeout=30) as answer:  # noqa: S310  a port of ours
        return dict(json.load(answer))


def kept(tab: Tab, name: str) -> None:
    """A screenshot, where somebody wants to look."""
    shot = tab.screenshot()
    assert shot.startswith(b"\x89PNG")
    if SHOTS:
        Path(SHOTS, f"{name}.png").write_bytes(shot)


def number(text: str) -> int:
    return int(re.sub(r"\D", "", text) or 0)


def test_the_page_shows_a_service_at_work(browser: Browser, world: World) -> None:
    with world.running(), Traffic(world.database.dsn, seed=3, writers=2).running():
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT 500000 + n, clock_timestamp() + interval '1 h' + n * interval '1 s'"
            " FROM generate_series(1, 30) n"
        )
        tab = Tab(browser)
        tab.looks(width=1280, height=900, prefers_color_scheme="light")
        tab.open(world.address)
        wait_until(lambda: tab.text("#state") == "✓ All is well", 30, "the page says that all is well")
        closed = "#close dd:nth-of-type(2)"
        wait_until(lambda: number(tab.text(closed)) > 5, 60, "closes are shown")
        before = number(tab.text(closed)), number(tab.text("#slot dd:nth-of-type(2)"))
        wait_until(
            lambda: number(tab.text(closed)) > before[0] and number(tab.text("#slot dd:nth-of-type(2)")) > before[1],
            60,
            "figures move",
        )
        wait_until(lambda: tab.value("document.querySelector('#flow').className") == "flow moving", 30, "it flows")
        wait_until(lambda: "expired" in tab.text("#events tbody"), 30, "events are shown")
        wait_until(lambda: re.search(r"-?\d+\t\d\d-\d\d \d\d:", tab.text("#next tbody")), 30, "deadlines are shown")
        wait_until(lambda: re.search(r"[kM]?B", tab.text("#slot dd")), 30, "the slot was looked at")
        assert re.search(r"p99\s+[\d.]+ m?s", tab.text("#lateness"))
        assert tab.value("[...document.querySelectorAll('.bar div')].some(bar => bar.offsetHeight > 2)")
        kept(tab, "light")
        tab.looks(width=1280, height=900, prefers_color_scheme="dark", prefers_reduced_motion="reduce")
        assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 24)"
        assert tab.value("getComputedStyle(document.querySelector('#topic'), '::before').animationName") == "none"
        kept(tab, "dark")
        for scheme in ("light", "dark"):
            tab.looks(width=360, height=740, prefers_color_scheme=scheme)
            assert tab.value("document.documentElement.scrollWidth") <= 360, "a phone needs no sideways scrolling"
            kept(tab, f"phone-{scheme}")
        assert_readable(tab)
        assert_by_keyboard(tab)
        assert tab.complaints() == []
        assert {address.removeprefix(world.address) for address in tab.requested()} == {
            *("/", "/page.css", "/page.js", "/icon.svg", "/status")
        }
    wait_until(lambda: "no answer since" in tab.text("#state"), 30, "the page says that nobody answers")
    assert tab.text("#said") == "No answer from cdcwatch"


def assert_readable(tab: Tab) -> None:
    """What a screen reader goes by."""
    tree = tab.call("Accessibility.getFullAXTree")["nodes"]
    seen = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node["ignored"] and "role" in node
    ]
    roles = [role for role, _ in seen]
    for role in ("banner", "main", "contentinfo", "status", "table"):
        assert role in roles, role
    assert [name for role, name in seen if role == "heading"][:2] == ["cdcwatch", "Flow"]
    assert {"Flow", "Lateness", "Next deadlines", "Last events", "What the slot keeps"} <= {
        name for role, name in seen if role == "region"
    }
    assert all(name for role, name in seen if role in {"button", "link", "table", "region"}), seen
    assert tab.value("document.documentElement.lang") == "en"


def assert_by_keyboard(tab: Tab) -> None:
    """The skip link first, then the button, which works."""
    tab.value("document.activeElement.blur()")
    tab.press("Tab")
    assert tab.value("document.activeElement.className") == "skip"
    tab.press("Tab")
    assert tab.value("document.activeElement.id") == "pause"
    assert "solid" in tab.value("getComputedStyle(document.activeElement).outline")
    tab.press("Enter")
    wait_until(lambda: tab.text("#pause") == "Go on", 10, "it pauses")
    assert tab.value("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
    tab.press("Enter")
    wait_until(lambda: tab.text("#pause") == "Pause", 10, "it goes on")


def test_an_alarm_names_what_is_wrong_and_what_to_do(browser: Browser, world: World) -> None:
    with world.running():
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp() + interval '1 s')")
        with world.database.connect(autocommit=False) as other:
            other.execute("SELECT FROM orders WHERE id = 1 FOR UPDATE")
            tab = Tab(browser)
            tab.looks(width=1280, height=900, prefers_color_scheme="light")
            tab.open(world.address)
            wait_until(lambda: "others hold it locked" in tab.text("#alarms"), 60, "the alarm is shown")
            assert tab.text("#state") == "! 1 alarm"
            assert re.search(
                r"! closer: an order has been due for \d+ s.*\n\s*Remedy: see pg_stat_activity", tab.text("#alarms")
            )
            assert "1 alarm: closer" in tab.text("#said")
            assert tab.value("document.title") == "(1) cdcwatch"
            kept(tab, "alarm")
        wait_until(lambda: tab.text("#state") == "✓ All is well", 60, "it is over")
        assert tab.value("document.querySelector('#alarms').hidden")
        assert tab.complaints() == []


def test_several_tables_stand_side_by_side(browser: Browser, database: Database, kafka: Kafka, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        topics = {name: stack.enter_context(fresh_topic(kafka)) for name in ("shop", "hotel")}
        progress = stack.enter_context(fresh_topic(kafka))
        world = SeveralWorld(database, kafka.bootstrap_servers, topics, tmp_path, progress=progress, plugin="pgoutput")
        stack.enter_context(world)
        world.make()
        world.create_slot()
        world.listen()
        with world.running():
            world.insert([1, 2, 3])
            world.insert([4], "hotel", due_in_s=600)
            world.insert([5], "shop", due_in_s=601)
            tab = Tab(browser)
            tab.looks(width=360, height=740, prefers_color_scheme="light")
            tab.open(world.address)
            shop, hotel = (f"{name}.orders\t1\t" for name in ("shop", "hotel"))
            wait_until(lambda: {shop, hotel} <= _starts(tab.text("#tables tbody")), 60, "tables are shown")
            wait_until(lambda: tab.text("#close dd:nth-of-type(2)") == "6", 60, "closes of both are counted")
            assert re.search(r"hotel.orders\s+4\b.*shop.orders\s+5\b", tab.text("#next tbody"), re.DOTALL)
            assert {"shop.orders", "hotel.orders"} <= set(re.findall(r"\w+\.orders", tab.text("#events tbody")))
            assert tab.value("document.documentElement.scrollWidth") <= 360
            assert tab.complaints() == []
            kept(tab, "several-phone")
            tab.looks(width=1280, height=900, prefers_color_scheme="light")
            kept(tab, "several")
            told = status(world)
    assert [one["name"] for one in told["tables"]] == ["shop.orders", "hotel.orders"]
    assert told["totals"]["closes_by_outcome"] == {"closed": 6}
    assert "status" not in json.dumps(told["events"])


def _starts(text: str) -> set[str]:
    return {"\t".join(line.split("\t")[:2]) + "\t" for line in text.splitlines()}
