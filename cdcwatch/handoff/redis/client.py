"""What every Redis client of ours shares: the connection, and what Redis' errors mean to an operator.

https://redis.io/docs/latest/develop/clients/redis-py/
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError, UnavailableError
from cdcwatch.handoff.redis.keys import hash_slot

try:
    from redis import Redis, RedisError
    from redis import exceptions as refused
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError:
    raise ConfigurationError(
        'sink.kind = "redis" needs the Python package redis', remedy="pip install 'cdcwatch[redis]'"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdcwatch.settings import RedisSettings

__all__ = ["RedisError", "connected", "explain_redis", "lua", "place", "refused", "talking"]

CONNECT_S: Final = 5.0
ANSWER_S: Final = 15.0
"""A connection that answers nothing is given up after this."""
_UP: Final = "see that the server of redis.url is up"
_BY_WORD: Final = {
    "LOADING": (UnavailableError, "Redis is loading its data", "wait: it answers once that is done"),
    "READONLY": (
        UnavailableError,
        "the Redis at redis.url is a replica",
        "wait for the failover to end, or mend redis.url",
    ),
    "MASTERDOWN": (UnavailableError, "the Redis at redis.url is a replica whose master is away", _UP),
    "CLUSTERDOWN": (UnavailableError, "the Redis cluster is down", "see `redis-cli cluster info`"),
    "TRYAGAIN": (UnavailableError, "the Redis cluster is moving a hash slot", "wait: it is tried again by itself"),
    "MOVED": (
        UnavailableError,
        "the Redis cluster has moved our keys to another node",
        "nothing: it is found by itself",
    ),
    "OOM": (
        UnavailableError,
        "Redis is out of memory",
        "raise maxmemory, or set redis.max_age_s so that old events are trimmed",
    ),
    "MISCONF": (UnavailableError, "Redis can't write to its disk", "see Redis' log: a disk is full or broken"),
    "BUSY": (
        UnavailableError,
        "Redis is busy with a script of another program",
        "wait, or end it with SCRIPT KILL",
    ),
    "NOSCRIPT": (UnavailableError, "Redis has forgotten our script", "nothing: it is loaded again by itself"),
    "NOREPLICAS": (
        UnavailableError,
        "Redis takes no writes: it has fewer replicas than min-replicas-to-write",
        "bring the replicas back",
    ),
    "NOAUTH": (PreconditionError, "Redis wants a password", "write it into redis.url: redis://user:password@host:6379"),
    "WRONGPASS": (PreconditionError, "Redis refuses user and password", "mend them in redis.url"),
    "CROSSSLOT": (
        PreconditionError,
        "the Redis cluster keeps our keys apart",
        'name them with one hash tag: redis.stream = "{orders}.deadlines"',
    ),
    "WRONGTYPE": (
        PreconditionError,
        "one of our keys in Redis is something else than we make",
        "choose another redis.stream: another program uses this name",
    ),
}


def connected(settings: RedisSettings, *, answer_s: float = ANSWER_S) -> Any:
    """A client that Redis has answered: in a cluster of the node that has our keys. CdcwatchError with the reason.

    Not for several threads. Any: redis-py types its answers as what they are to all of its clients.
    """
    client = _made(settings, answer_s)
    try:
        with talking():
            if client.info("cluster").get("cluster_enabled") != 1:
                return client
            home = _home(client, hash_slot(settings.stream))
            if home is not None:
                client.close()
                client = _made(settings, answer_s, *home)
                client.ping()
            return client
    except BaseException:
        client.close()
        raise


def _home(client: Any, slot: int) -> tuple[str, int] | None:
    """Host and port of the node that has a hash slot; None where that is the one that was asked."""
    for first, last, node, *_ in client.execute_command("CLUSTER SLOTS"):
        if first <= slot <= last:
            own = client.connection_pool.connection_kwargs
            host, port = _text(node[0]) or own.get("host", ""), int(node[1])
            return None if (host, port) == (own.get("host"), own.get("port")) else (host, port)
    raise UnavailableError("the Redis cluster has no node for our keys", remedy="see `redis-cli cluster info`")


def _made(settings: RedisSettings, answer_s: float, host: str = "", port: int = 0) -> Any:
    try:
        client: Any = Redis.from_url(
            settings.url,
            client_name="cdcwatch",
            socket_connect_timeout=CONNECT_S,
            socket_timeout=answer_s,
            socket_keepalive=True,
            protocol=2,
            # None of redis-py's own: what became of a command whose answer is lost shows in the progress record.
            retry=Retry(NoBackoff(), 0),
        )
    except (ValueError, TypeError):  # its text may hold a password
        raise ConfigurationError(
            "redis.url is no address of a Redis",
            remedy="it begins with redis://, or rediss:// for TLS: redis://host:6379/0",
        ) from None
    if host:
        client.connection_pool.connection_kwargs.update(host=host, port=port)
    return client


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


@contextmanager
def talking() -> Iterator[None]:
    """Errors of Redis as ours."""
    try:
        yield
    except RedisError as error:
        raise explain_redis(error) from error
    except OSError as error:
        raise UnavailableError(f"Redis: {error}", remedy=_UP) from error


def explain_redis(error: RedisError) -> CdcwatchError:  # noqa: PLR0911  a kind each
    """By its first word or its class. Redis' own words hold no values and no passwords."""
    said = str(error)
    known = _BY_WORD.get(said.partition(" ")[0])
    if known is None and "certificate verify failed" in said.lower():
        return PreconditionError(
            "Redis: its certificate is not trusted", remedy="redis.url: rediss://…?ssl_ca_certs=/path/of/the/authority"
        )
    if isinstance(error, refused.NoPermissionError) or "user executing the script can't" in said:
        return PreconditionError(
            f"Redis refuses: {_line(said)}", remedy="grant what docs/sinks.md names: ACL SETUSER … ~<stream>* +…"
        )
    if known is None:
        known = next((_BY_WORD[word] for kind, word in _BY_CLASS if isinstance(error, kind)), None)
    if known is not None:
        kind, message, remedy = known
        return kind(message, remedy=remedy)
    if isinstance(error, refused.TimeoutError):
        return UnavailableError("Redis does not answer", remedy=_UP)
    if isinstance(error, refused.ConnectionError):
        return UnavailableError(f"Redis: {_line(said)}", remedy=_UP)
    if "unknown command" in said.lower() or "unknown subcommand" in said.lower():
        return PreconditionError(f"Redis refuses: {_line(said)}", remedy="use Redis 7.0 or later")
    return UnavailableError(f"Redis: {_line(said)}", remedy="see Redis' log; it is tried again by itself")


_BY_CLASS: Final = (
    (refused.AuthenticationError, "WRONGPASS"),
    (refused.AuthorizationError, "NOAUTH"),
    (refused.BusyLoadingError, "LOADING"),
    (refused.ReadOnlyError, "READONLY"),
    (refused.OutOfMemoryError, "OOM"),
    (refused.NoScriptError, "NOSCRIPT"),
    (refused.MasterDownError, "MASTERDOWN"),
    (refused.ClusterDownError, "CLUSTERDOWN"),
    (refused.MovedError, "MOVED"),
)
"""redis-py takes the first word off some."""


def _line(said: str) -> str:
    """Its first line, and not the long tail that a script's error has."""
    return said.splitlines()[0].partition(" script: ")[0][:300] if said else "it ended the connection"


def place(settings: RedisSettings) -> str:
    """Host and port of redis.url, without user and password."""
    try:
        parts = urlsplit(settings.url)
        host, port, path = parts.hostname, parts.port or 6379, parts.path
    except ValueError:
        return "redis.url"
    return f"{host}:{port}" if host else path or "redis.url"


def lua(name: str) -> str:
    """One of our scripts."""
    return Path(__file__).with_name(f"{name}.lua").read_text(encoding="utf-8")
