"""The reader of docs/sinks.md for the streams of the sink `redis`, as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from redis import Redis

from tests.pages import ROOT, blocks
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests import services

READER = next(block for block in blocks(ROOT / "docs/sinks.md") if "xreadgroup" in block.text)


def test_it_handles_what_is_there_what_comes_and_what_it_left(
    redis_server: services.Redis, stream: str, tmp_path: Path
) -> None:
    text = READER.text
    for here, there in (("redis://localhost:6379/0", redis_server.url), ("orders.deadlines", stream)):
        assert here in text
        text = text.replace(here, there)
    (tmp_path / "reader.py").write_text(text)

    with Redis.from_url(redis_server.url, protocol=2) as client:

        def tell(*subjects: str) -> None:
            for subject in subjects:
                client.xadd(stream, {"value": f'{{"type": "deadline.expired", "subject": "{subject}"}}'})

        def run(*expected: str, also: tuple[str, ...] = ()) -> None:
            shown = tmp_path / "shown"
            with shown.open("wb") as out:
                process = subprocess.Popen([sys.executable, tmp_path / "reader.py"], stdout=out, env=os.environ)
            try:
                for subject in also:
                    wait_until(lambda: has_read(shown, expected) or process.poll() is not None, 30, "the first")
                    tell(subject)
                wait_until(
                    lambda: has_read(shown, (*expected, *also)) or process.poll() is not None, 30, "all are handled"
                )
                assert process.poll() is None
                wait_until(lambda: client.xpending(stream, "stock")["pending"] == 0, 30, "all are acknowledged")
            finally:
                process.kill()
                process.wait()
            assert has_read(shown, (*expected, *also))

        tell("1", "2")
        run("1", "2", also=("3",))
        tell("4", "5", "6")
        # As if it had died over these: given to it, and not acknowledged; one of them is gone since.
        ((_, left),) = client.xreadgroup("stock", "stock-1", {stream: ">"}, count=2)
        client.xdel(stream, left[0][0])
        run("5", "6")


def has_read(shown: Path, subjects: tuple[str, ...]) -> bool:
    return shown.read_text().splitlines() == [f"deadline.expired {subject}" for subject in subjects]
