"""The level in Redis: shared by all processes of a group, as durable as that Redis is.

A hash an event, `cdcwatch:{group}:["source","id"]`, with state, owner, attempts and lease. Each call is one script,
atomic over all its keys, by Redis' own clock; the braces put a group's keys into one slot of a cluster.
https://redis.io/docs/latest/develop/programmability/eval-intro/
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from cdcwatch.consume.event import Identity
from cdcwatch.consume.store import KEEP_S, Claim, Verdict
from cdcwatch.errors import ConfigurationError, PreconditionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_TIMEOUT_S: Final = 3.0
_HEAD: Final = """
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local out = {}
"""
_SCRIPTS: Final = {
    # Owner, lease in ms, time to keep in ms.
    "begin": """
for i, key in ipairs(KEYS) do
  local known = redis.call('HMGET', key, 'state', 'owner', 'attempts', 'until')
  local state, owner, attempts, till = known[1], known[2], tonumber(known[3] or '0'), tonumber(known[4] or '0')
  if state == 'completed' or state == 'given up' then
    out[i] = {state, 0, 0, 0}
  elseif state == 'processing' and owner ~= ARGV[1] and till > now then
    out[i] = {'busy', 0, 0, till - now}
  else
    local takeover = (state == 'processing' and owner ~= ARGV[1]) and 1 or 0
    if state ~= 'processing' or owner ~= ARGV[1] then attempts = attempts + 1 end
    redis.call('HSET', key, 'state', 'processing', 'owner', ARGV[1], 'attempts', attempts,
               'until', string.format('%.0f', now + tonumber(ARGV[2])))
    redis.call('PEXPIRE', key, ARGV[3])
    out[i] = {'ours', attempts, takeover, 0}
  end
end
return out""",
    # Owner, time to keep. A record that is gone (Redis was emptied) is made again: the event is handled.
    "complete": """
for i, key in ipairs(KEYS) do
  local known = redis.call('HMGET', key, 'state', 'owner')
  if known[1] == 'processing' and known[2] ~= ARGV[1] then
    out[i] = 1
  else
    redis.call('HSET', key, 'state', 'completed', 'at', string.format('%.0f', now))
    redis.call('HDEL', key, 'owner', 'until')
    redis.call('PEXPIRE', key, ARGV[2])
    out[i] = 0
  end
end
return out""",
    # Owner, time to keep, new state, error.
    "fail": """
for i, key in ipairs(KEYS) do
  local known = redis.call('HMGET', key, 'state', 'owner')
  if known[1] ~= 'completed' and (known[1] ~= 'processing' or known[2] == ARGV[1]) then
    redis.call('HSET', key, 'state', ARGV[3], 'error', ARGV[4], 'at', string.format('%.0f', now))
    redis.call('HDEL', key, 'owner', 'until')
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
return out""",
    "release": """
for i, key in ipairs(KEYS) do
  local known = redis.call('HMGET', key, 'state', 'owner', 'attempts')
  if known[1] == 'processing' and known[2] == ARGV[1] then
    if tonumber(known[3]) <= 1 then
      redis.call('DEL', key)
    else
      redis.call('HSET', key, 'state', 'failed', 'attempts', tonumber(known[3]) - 1)
      redis.call('HDEL', key, 'owner', 'until')
    end
  end
end
return out""",
    # Owner, lease in ms, time to keep.
    "renew": """
for i, key in ipairs(KEYS) do
  local known = redis.call('HMGET', key, 'state', 'owner')
  if known[1] == 'processing' and known[2] == ARGV[1] then
    redis.call('HSET', key, 'until', string.format('%.0f', now + tonumber(ARGV[2])))
    redis.call('PEXPIRE', key, ARGV[3])
    out[i] = 0
  else
    out[i] = 1
  end
end
return out""",
    "known": """
for i, key in ipairs(KEYS) do
  local state = redis.call('HGET', key, 'state')
  out[i] = (state == 'completed' or state == 'given up') and 1 or 0
end
return out""",
    # Time to keep. Also over what this level believed to be in hand: a deeper one has decided.
    "remember": """
for i, key in ipairs(KEYS) do
  redis.call('HSET', key, 'state', 'completed', 'at', string.format('%.0f', now))
  redis.call('HDEL', key, 'owner', 'until')
  redis.call('PEXPIRE', key, ARGV[1])
end
return out""",
    "forget": """
for i, key in ipairs(KEYS) do out[i] = redis.call('DEL', key) end
return out""",
}

# How redis-py begins where there is no connection; the place is told already.
_PLACE: Final = re.compile(r"^Error \S+ connecting to \S+\. ")
_log = logging.getLogger(__name__)


class RedisStore:
    """`url`: as `redis://host:6379/0`, `rediss://…`, `unix://…`. `keep_s`: for how long a handled event is known.

    It needs Redis 5 or later, and, where it is the last level, a Redis that forgets nothing: `appendonly yes` and
    `maxmemory-policy noeviction`; docs/consume.md says what each loss comes to.
    """

    name = "redis"
    rank = 2

    def __init__(self, url: str, *, keep_s: float = KEEP_S, prefix: str = "cdcwatch:") -> None:
        """ConfigurationError without the extra `redis`, or with an address that is none."""
        try:
            import redis  # noqa: PLC0415  an extra
            from redis.backoff import NoBackoff  # noqa: PLC0415
            from redis.retry import Retry  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError(
                "RedisStore needs the package redis", remedy="pip install 'cdcwatch[redis]'"
            ) from error
        self._errors: Any = redis.exceptions
        self._keep_ms, self._prefix = int(keep_s * 1000), prefix
        try:
            # The consumer waits and tries again by itself; here only a stale connection is replaced.
            self._client: Any = redis.Redis.from_url(
                url,
                decode_responses=True,
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
                retry=Retry(NoBackoff(), 1),
            )
        except ValueError:
            raise ConfigurationError(
                "the address of RedisStore is none", remedy="redis://host:6379/0, rediss://… or unix://…"
            ) from None
        where = self._client.connection_pool.connection_kwargs
        self._address = where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        self._scripts = {name: self._client.register_script(_HEAD + script) for name, script in _SCRIPTS.items()}
        self._head = prefix

    def open(self, group: str) -> None:
        """As of Store. Warns where this Redis may throw records away."""
        self._head = f"{self._prefix}{{{group}}}:"
        self.known([Identity("", "")])  # no event's: is it there, and does it let us in
        with contextlib.suppress(UnavailableError, PreconditionError), self._translated():
            policy = self._client.config_get("maxmemory-policy").get("maxmemory-policy", "noeviction")
            if policy != "noeviction":
                _log.warning(
                    "Redis forgets keys when its memory is full (maxmemory-policy %s): their events are handled again",
                    policy,
                    extra={"remedy": "maxmemory-policy noeviction"},
                )

    def close(self) -> None:
        """As of Store."""
        self._client.close()

    def known(self, identities: Sequence[Identity]) -> set[Identity]:
        """As of Store."""
        return self._marked("known", identities)

    def remember(self, identities: Collection[Identity]) -> None:
        """As of Store."""
        self._call("remember", identities, self._keep_ms)

    def begin(self, identities: Sequence[Identity], owner: str, lease_s: float) -> list[Claim]:
        """As of Store."""
        answers = self._call("begin", identities, owner, int(lease_s * 1000), self._keep_ms)
        return [
            Claim(Verdict(verdict), int(attempt), bool(int(takeover)), int(wait_ms) / 1000)
            for verdict, attempt, takeover, wait_ms in answers
        ]

    def complete(self, identities: Sequence[Identity], owner: str) -> set[Identity]:
        """As of Store."""
        return self._marked("complete", identities, owner, self._keep_ms)

    def fail(self, identity: Identity, owner: str, error: str, *, is_given_up: bool) -> None:
        """As of Store."""
        self._call("fail", [identity], owner, self._keep_ms, "given up" if is_given_up else "failed", error)

    def release(self, identities: Sequence[Identity], owner: str) -> None:
        """As of Store."""
        self._call("release", identities, owner)

    def renew(self, identities: Collection[Identity], owner: str, lease_s: float) -> set[Identity]:
        """As of Store."""
        return self._marked("renew", list(identities), owner, int(lease_s * 1000), self._keep_ms)

    def forget(self, identities: Iterable[Identity]) -> int:
        """As of Store."""
        return len(self._marked("forget", list(identities)))

    def purge(self, older_than_s: float) -> int:  # noqa: ARG002
        """Nothing: Redis forgets by itself after `keep_s`."""
        return 0

    def _marked(self, script: str, identities: Sequence[Identity], *arguments: str | int) -> set[Identity]:
        answers = self._call(script, identities, *arguments)
        return {identity for identity, answer in zip(identities, answers, strict=True) if int(answer)}

    def _call(self, script: str, identities: Collection[Identity], *arguments: str | int) -> list[Any]:
        if not identities:
            return []
        keys = [f"{self._head}{json.dumps(identity, separators=(',', ':'))}" for identity in identities]
        with self._translated():
            answers: list[Any] = self._scripts[script](keys=keys, args=arguments)
        return answers

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """redis-py's errors by what can be done about them. Their text is the server's, without keys or values."""
        errors = self._errors
        try:
            yield
        except (errors.AuthenticationError, errors.NoPermissionError) as error:
            raise PreconditionError(
                f"Redis at {self._address} refuses: {type(error).__name__}",
                remedy="mend user and password in the address, or the ACL",
            ) from error
        except (errors.RedisError, OSError) as error:
            # A connection's error tells no more than the address; another's text may quote what was sent.
            is_away = isinstance(error, errors.ConnectionError | errors.TimeoutError | OSError)
            reason = _PLACE.sub("", str(error)).rstrip(".") if is_away else ""
            raise UnavailableError(
                f"Redis at {self._address}: {reason or type(error).__name__}",
                remedy="see that Redis is up and takes writes",
            ) from error
