"""A headless Chromium, driven over a pipe by its DevTools protocol. https://chromedevtools.github.io/devtools-protocol/"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def found_chromium() -> str:
    """Its path; the test fails where there is none, and says what to install."""
    path = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if path is None:
        pytest.fail("no Chromium here: `tools/bring-packages` brings it, or `apt-get install chromium`")
    return path


class Tab:
    """One page."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def looks(self, *, width: int, height: int, **media: str) -> None:
        """Size in CSS pixels, and media features: `prefers_color_scheme="dark"`."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def text(self, selector: str) -> str:
        """What stands there; empty where nothing does."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        for kind in ("rawKeyDown", "char", "keyUp") if key == "Enter" else ("rawKeyDown", "keyUp"):
            text = {"text": "\r"} if kind == "char" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(told["data"])

    def events(self, *methods: str) -> list[dict[str, Any]]:
        """What the browser has told of this page so far."""
        return [
            one["params"]
            for one in list(self._browser.told)
            if one.get("sessionId") == self._session and one["method"] in methods
        ]

    def complaints(self) -> list[str]:
        """Errors in the console, exceptions, violations of the policy."""
        logged = [
            f"{one['entry']['source']}: {one['entry']['text']}"
            for one in self.events("Log.entryAdded")
            if one["entry"]["level"] in {"error", "warning"}
        ]
        thrown = [str(one["exceptionDetails"]) for one in self.events("Runtime.exceptionThrown")]
        printed = [str(one["args"]) for one in self.events("Runtime.consoleAPICalled") if one["type"] != "log"]
        return logged + thrown + printed

    def requested(self) -> set[str]:
        """Every address that the page asked for."""
        return {one["request"]["url"] for one in self.events("Network.requestWillBeSent")}


class Browser:
    """Calls have answers; events are kept in `told`."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.told: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while piece := os.read(self._from, 1 << 16):
                *messages, rest = (rest + piece).split(b"\0")
                for message in map(json.loads, messages):
                    if "id" in message:
                        self._answers[message["id"]] = message
                    else:
                        self.told.append(message)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            asked["sessionId"] = session
        left = json.dumps(asked).encode() + b"\0"
        while left:
            left = left[os.write(self._to, left) :]
        answer = wait_until(lambda: self._answers.pop(asked["id"], None), 30, f"an answer to {method}")
        assert "error" not in answer, answer
        return dict(answer["result"])


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """One with a profile of its own, gone afterwards."""
    program = found_chromium()
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with contextlib.ExitStack() as stack:
        profile = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="cdcwatch-browser-", ignore_cleanup_errors=True)
        )
        command = [
            *("bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash"),
            *(program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"),
            *("--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions"),
            *("--disable-component-update", "--no-default-browser-check", "--hide-scrollbars"),
            *(("--no-sandbox",) if os.geteuid() == 0 else ()),
        ]
        process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        browser = Browser(ours_out, ours_in)
        try:
            yield browser
        finally:
            with contextlib.suppress(AssertionError, OSError):
                browser.call("Browser.close")
            os.close(ours_out)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(ours_in)
