"""A TCP proxy whose network can be made bad, per direction and on demand.

What the kernel would never do it doesn't do either: bytes may be late, and a connection may lose all that follows, but
none goes on after a hole. A connection that has lost bytes is half-open for good; only new ones work after `heal`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from typing import Self

_PIECE_BYTES = 1 << 16
_PIECES_S = 20
"""A throttled stream comes in so many pieces a second."""
_ABORT = struct.pack("ii", 1, 0)


class Way(Enum):
    """A direction."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


BOTH = (Way.TO_SERVER, Way.TO_CLIENT)


@dataclass
class _Weather:
    """How one direction is, for every connection."""

    latency_s: float = 0.0
    bytes_per_s: int = 0
    swallows: bool = False
    flows: asyncio.Event = field(default_factory=asyncio.Event)

    def clear(self) -> None:
        self.latency_s, self.bytes_per_s, self.swallows = 0.0, 0, False
        self.flows.set()


class _Link:
    """One connection through the proxy."""

    def __init__(self, ours: asyncio.StreamWriter, theirs: asyncio.StreamWriter) -> None:
        self._ends = {Way.TO_CLIENT: ours, Way.TO_SERVER: theirs}
        self.is_holed = dict.fromkeys(Way, False)
        self.released = asyncio.Event()

    def end(self, way: Way) -> asyncio.StreamWriter:
        """Where bytes of this direction go."""
        return self._ends[way]

    def abort(self) -> None:
        """Both sides get a reset."""
        for end in self._ends.values():
            raw = end.get_extra_info("socket")
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            end.transport.abort()
        self.released.set()


class Proxy:
    """Listens on `port` of the loopback interface, runs on a thread of its own; every method may be called from any."""

    def __init__(self, host: str, port: int) -> None:
        """In front of that server, which need not run yet."""
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._weather = {way: _Weather() for way in Way}
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._await(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.heal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- faults ------------------------------------------------------------------------------------------------------

    def delay(self, latency_s: float, ways: Sequence[Way] = BOTH) -> None:
        """Every piece arrives so much later."""
        self._each(ways, lambda weather: setattr(weather, "latency_s", latency_s))

    def throttle(self, bytes_per_s: int, ways: Sequence[Way] = BOTH) -> None:
        """No more than that for each connection."""
        self._each(ways, lambda weather: setattr(weather, "bytes_per_s", bytes_per_s))

    def stall(self, ways: Sequence[Way] = BOTH) -> None:
        """Nothing passes until `heal`, and nothing is lost: TCP would send it again."""
        self._each(ways, lambda weather: weather.flows.clear())

    def black_hole(self, ways: Sequence[Way] = BOTH) -> None:
        """What is connected, and what connects until `heal`, sends into the void: no error, no answer."""
        self._each(ways, lambda weather: setattr(weather, "swallows", True))

    def half_open(self, ways: Sequence[Way] = BOTH) -> None:
        """What is connected now sends into the void from here on; new connections work."""

        def hole() -> None:
            for link in self._links:
                for way in ways:
                    link.is_holed[way] = True

        self._call(hole)

    def reset(self) -> None:
        """What is connected now gets a reset on both sides; new connections work."""
        self._call(lambda: [link.abort() for link in list(self._links)])

    def heal(self) -> None:
        """New connections work again, and the late ones go on. Half-open ones stay so until their client goes."""

        def heal() -> None:
            for weather in self._weather.values():
                weather.clear()

        self._call(heal)

    @property
    def connection_count(self) -> int:
        """Through the proxy now, half-open ones included."""
        return len(self._links)

    def forget(self) -> None:
        """As the state table of a firewall at last: half-open connections get a reset."""
        self._call(lambda: [link.abort() for link in list(self._links) if any(link.is_holed.values())])

    def close(self) -> None:
        """Ends every connection; the port is closed."""

        async def end() -> None:
            self._server.close()
            for link in list(self._links):
                link.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # transports say goodbye in the next turn

        self._await(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- the loop's thread -------------------------------------------------------------------------------------------

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _call(self, what: Callable[[], object]) -> None:
        async def call() -> None:
            what()

        self._await(call())

    def _each(self, ways: Sequence[Way], change: Callable[[_Weather], object]) -> None:
        self._call(lambda: [change(self._weather[way]) for way in ways])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # `close` cancels, which asyncio's streams would call an error.
        with contextlib.suppress(asyncio.CancelledError):
            await self._connect(reader, writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:  # the server is away: a refusal, as far as it can be told late
            writer.transport.abort()
            return
        link = _Link(writer, far_writer)
        self._links.add(link)
        try:
            await asyncio.gather(self._relay(link, Way.TO_SERVER, reader), self._relay(link, Way.TO_CLIENT, far_reader))
        finally:
            self._links.discard(link)
            link.abort()

    async def _relay(self, link: _Link, way: Way, reader: asyncio.StreamReader) -> None:
        weather, writer = self._weather[way], link.end(way)
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                if weather.latency_s:
                    await asyncio.sleep(weather.latency_s)
                for piece in _pieces(data, weather.bytes_per_s):
                    if weather.bytes_per_s:
                        await asyncio.sleep(len(piece) / weather.bytes_per_s)
                    await weather.flows.wait()
                    link.is_holed[way] |= weather.swallows
                    if not link.is_holed[way]:
                        writer.write(piece)
                        await writer.drain()
        if link.is_holed[way] or weather.swallows:
            # The end is swallowed, too: the other side goes on believing in the connection.
            link.is_holed[way] = True
            await link.released.wait()
            return
        with contextlib.suppress(OSError):
            await weather.flows.wait()
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()


def _pieces(data: bytes, bytes_per_s: int) -> Iterator[bytes]:
    size = max(1, bytes_per_s // _PIECES_S) if bytes_per_s else len(data)
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


def before(dsn: str) -> Proxy:
    """A proxy in front of the server of a DSN."""
    parameters = psycopg.conninfo.conninfo_to_dict(dsn)
    return Proxy(str(parameters["host"]), int(str(parameters["port"])))


def through(proxy: Proxy, dsn: str, **others: str) -> str:
    """The DSN by way of the proxy."""
    return psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=proxy.port, **others)
