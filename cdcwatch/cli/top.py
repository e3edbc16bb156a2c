"""`cdcwatch top`: a running service at work, in a terminal."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from cdcwatch.cli.options import ConfigOption, DebugOption, settings_of
from cdcwatch.cli.output import print_json
from cdcwatch.errors import CdcwatchError, ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from rich.console import Console

_ANSWER_S: Final = 5.0
_MOST_BYTES: Final = 1 << 22
_RATE_S: Final = 0.5
"""Between two looks: rates have a span then."""
_ANY: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  where it listens, not where we do


def top(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Of the service's port. Default: as telemetry.listen says."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, print, and end.")] = False,
    interval: Annotated[float, typer.Option("--interval", metavar="S", min=0.2, help="Between two looks.")] = 1.0,
    json: Annotated[
        bool, typer.Option("--json", help="Print what /status says: one line a look, with --once indented.")
    ] = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Show a running service at work: rates from slot to close, lateness, next deadlines, events, alarms. q ends it."""
    from rich.console import Console

    address = _address(url, lambda: settings_of(context, config).telemetry.listen)
    console = Console(highlight=False)
    told = _asked(address)
    if not json and not once and console.is_terminal and not console.is_dumb_terminal:
        _live(console, address, told, interval)
        return
    if told["rates"] is None:
        time.sleep(_RATE_S)
        told = _asked(address)
    if json:
        _print_documents(address, told, interval, once=once)
    else:
        from cdcwatch.cli.picture import drawn

        console.print(drawn(told, width=console.width, height=40))


def _address(url: str | None, listen: Callable[[], str]) -> str:
    """Of `/status`."""
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise ConfigurationError("--url takes an http:// address", remedy="write it as http://127.0.0.1:9464")
        return f"{url.rstrip('/').removesuffix('/status')}/status"
    host, _, port = listen().rpartition(":")
    if not port:
        raise ConfigurationError(
            "telemetry.listen is empty: the service has no port", remedy="set it, or name the service's with --url"
        )
    return f"http://{_ANY.get(host, host)}:{port}/status"


def _asked(address: str) -> dict[str, Any]:
    import urllib3

    remedy = "is it running, with telemetry.listen as here? Name its port with --url http://HOST:PORT"
    give_up_s, body = time.monotonic() + _ANSWER_S, b""
    try:
        answer = urllib3.request("GET", address, timeout=_ANSWER_S, retries=False, preload_content=False)
        # Piece by piece: what else listens there may drip for ever, or never stop.
        while len(body) < _MOST_BYTES and time.monotonic() < give_up_s and (piece := answer.read1(1 << 16)):
            body += piece
        answer.close()
    except urllib3.exceptions.HTTPError as error:
        said = "it did not answer in time" if "timed out" in str(error) else "nobody answers"
        raise UnavailableError(f"{address}: {said}", remedy=remedy) from None
    try:
        told = orjson.loads(body)
        if answer.status == 200 and {"version", "rates", "parts"} <= set(told):  # noqa: PLR2004
            return dict(told)
    except (orjson.JSONDecodeError, TypeError):
        pass
    raise UnavailableError(f"{address}: that is no cdcwatch, or an older one", remedy=remedy)


def _print_documents(address: str, told: dict[str, Any], interval_s: float, *, once: bool) -> None:
    if once:
        print_json(told)
        return
    try:
        while True:
            sys.stdout.write(orjson.dumps(told).decode() + "\n")
            sys.stdout.flush()
            time.sleep(interval_s)
            told = _asked(address)
    except KeyboardInterrupt:
        return


def _live(console: "Console", address: str, told: dict[str, Any], interval_s: float) -> None:
    """Until q, Ctrl-C or SIGTERM. A service that goes away is waited for."""
    from rich.live import Live

    from cdcwatch.cli.picture import drawn

    trouble = ""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # or the terminal would stay as it is
    try:
        with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(drawn(told, width=console.width, height=console.height, trouble=trouble), refresh=True)
                if {"q", "Q"} & set(pressed(interval_s)):
                    return
                try:
                    told, trouble = _asked(address), ""
                except CdcwatchError as error:
                    trouble = (
                        trouble or f"no answer since {time.strftime('%H:%M:%S')} ({str(error).rpartition(': ')[2]})"
                    )
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Waits for so many seconds at most and gives the keys that were pressed; empty where none was."""
    import os
    import select
    import termios
    import tty

    def waited(wait_s: float) -> str:
        time.sleep(wait_s)
        return ""

    if not sys.stdin.isatty():
        yield waited
        return
    before = termios.tcgetattr(sys.stdin)

    def pressed(wait_s: float) -> str:
        # Not by sys.stdin: of a key that is several bytes, an arrow, it would keep all but the first from `select`.
        read = os.read(sys.stdin.fileno(), 1024) if select.select([sys.stdin], [], [], wait_s)[0] else b""
        return read.decode(errors="replace")

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
