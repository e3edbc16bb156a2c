"""The Redis sink: exactly once, into streams.

A script is what Redis does in one piece. One writes events and the progress record together, if we still own the slot
and the progress is the one that we know of: so nothing is written twice, whatever became of an answer, and an older
process writes nothing.

A read of the table is more than a script should do at a time, for Redis does nothing else meanwhile. Its events are
put aside first; then one small script decides that they are to be there, with the progress record; then they are moved,
some hundreds a script. Before the decision nobody sees any of them. After it all of them come, whoever goes on: a
process that opens the sink finishes the move before anything else.
https://redis.io/docs/latest/develop/programmability/eval-intro/
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdcwatch import failpoints
from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.redis.client import RedisError, connected, lua, refused, talking
from cdcwatch.handoff.redis.encoding import Places, packed, packed_all
from cdcwatch.handoff.redis.keys import owner_key, progress_key, share_a_hash_slot, staged_key
from cdcwatch.handoff.redis.ledger import read_record
from cdcwatch.handoff.redis.server import read_server, require_fit
from cdcwatch.handoff.redis.streams import require_partitions, unfit
from cdcwatch.handoff.redis.survey import survey
from cdcwatch.handoff.sink import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from cdcwatch.deadline.event import Event
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.redis.server import ServerFacts
    from cdcwatch.handoff.sink import Batch
    from cdcwatch.handoff.told import Told
    from cdcwatch.settings import RedisSettings

SCRIPT_EVENTS: Final = 1000
SCRIPT_BYTES: Final = 1 << 20
"""A script is no longer than this, unless one batch of the reader's is: that is in the streams whole or not at all."""
MOVED_EVENTS: Final = 500
_MANY_EVENTS: Final = 5000
"""A batch of more is put aside first, as a read of the table is."""
_WAITAOF_MS: Final = 10_000
_LOOK_S: Final = 10.0
"""What the server is set to may change while it runs: it is looked at so often, when there is something to publish."""
_STREAM: Final = "stream"

_log = logging.getLogger(__name__)


class RedisSink:
    """As of `Sink`."""

    is_transactional = True

    def __init__(self, settings: RedisSettings, slot: str, topics: Sequence[str] = ()) -> None:
        """`topics`: of the tables, where they are others than `settings.stream`."""
        self._settings, self._slot = settings, slot
        self._topics = list(topics) or [settings.stream]
        self._places = Places(self._topics, settings.partitions)
        self._own = [owner_key(settings), progress_key(settings)]
        self._client: Any = None
        self._token = ""
        self._known = b""
        """The progress record as it stands in Redis."""
        self._digests: dict[str, str] = {}
        self._was_open = self._waits = False
        self._looked_s = 0.0
        self._acknowledged: list[range] = []
        self.made_topics: Collection[str] = ()

    def open(self) -> Progress | None:
        """Takes the slot, finishes what was decided, and says how far the streams go."""
        self.close()
        client = connected(self._settings)
        try:
            self._open(client)
        except BaseException:
            client.close()
            raise
        self._client = client
        return read_record(self._known, self._own[1], self._slot) if self._known else None

    def publish(self, batches: Sequence[Batch]) -> None:
        """A script for some batches, or for one that is larger; all of them sent at once. Durable on return."""
        client = self._running()
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._look(client)
        scripts = self._scripts(batches)
        newest = batches[-1].progress
        count = sum(len(parts) // 5 for parts, _ in scripts)
        if any(len(parts) // 5 > _MANY_EVENTS for parts, _ in scripts):
            for parts, progress in scripts:
                self._publish_aside(client, [parts], progress)
        else:
            self._send(client, scripts, newest.position.open_changes if count else None)
        if count:
            failpoints.reached("redis.written", newest.position.open_changes)
        self._acknowledged += [batch.sequence for batch in batches]

    def _scripts(self, batches: Sequence[Batch]) -> list[tuple[list[Any], bytes]]:
        """Whole batches each, with the progress record after them."""
        scripts: list[tuple[list[Any], bytes]] = []
        parts: list[Any] = []
        size_bytes = 0
        before: Progress | None = None
        for batch in batches:
            own: list[Any] = []
            for event in batch.events:
                self._places.put(event, own)
            is_full = len(parts) + len(own) > 5 * SCRIPT_EVENTS or size_bytes + batch.size_bytes > SCRIPT_BYTES
            if before is not None and is_full:
                scripts.append((parts, before.to_json()))
                parts, size_bytes = [], 0
            parts += own
            size_bytes += batch.size_bytes
            before = batch.progress
        if before is not None:
            scripts.append((parts, before.to_json()))
        return scripts

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:
        """Put aside, decided, moved; durable on return."""
        client = self._running()
        chunks = _Chunks(events, self._places)
        self._publish_aside(client, chunks, progress.to_json())
        return chunks.count

    def survey(self, made: Callable[[int], Told], topic: str = "") -> Told:
        """Reads the table's streams to their ends."""
        return survey(self._running(), topic or self._topics[0], made(self._settings.partitions))

    def acknowledged(self) -> list[range]:
        """Of the scripts that were done since the last call."""
        acknowledged, self._acknowledged = self._acknowledged, []
        return acknowledged

    def close(self) -> None:
        """Lets go of the connection."""
        client, self._client = self._client, None
        self._acknowledged = []
        if client is not None:
            client.close()

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open(self, client: Any) -> None:
        facts = self._look(client)
        keys = [*self._own, staged_key(self._settings, self._slot), *self._places.names]
        if facts.is_cluster and not share_a_hash_slot(keys):
            raise PreconditionError(
                "in a Redis cluster all our keys must lie in one hash slot",
                remedy='name the streams with one hash tag: redis.stream = "{orders}.deadlines"',
            )
        self._token, self._digests = uuid.uuid4().hex, {}
        with talking():
            self._require_rights(client)
            found, moving, partitions, kinds = self._script(
                client, "open", keys, [self._slot, self._token, self._settings.partitions]
            )
            self._known = found or b""
            require_partitions(int(partitions), self._settings)
            self._require_streams(client, [kind.decode() for kind in kinds])
            if moving:
                self._move(client, orjson.loads(moving))
            self._wait(client)
        self._was_open = True

    def _look(self, client: Any) -> ServerFacts:
        facts = read_server(client)
        self._waits = require_fit(facts, self._settings)
        self._looked_s = time.monotonic()
        return facts

    def _require_rights(self, client: Any) -> None:
        """Of every stream: inside of a script a missing right would show too late. This id is refused anyhow."""
        for name in [*self._places.names, staged_key(self._settings, self._slot)]:
            try:
                client.execute_command("XADD", name, "NOMKSTREAM", "0-0", "id", "")
            except refused.ResponseError as error:
                if "must be greater than 0-0" not in str(error):
                    raise

    def _require_streams(self, client: Any, kinds: list[str]) -> None:
        """One that was there a moment ago is not made anew behind its subscribers' backs."""
        missing = []
        for name, kind in zip(self._places.names, kinds, strict=True):
            if kind == "none" and not self._was_open:
                missing.append(name)
            elif kind != _STREAM:
                raise unfit(name, kind)
        for name in missing:
            client.xgroup_create(name, "cdcwatch.made", "$", mkstream=True)
            client.xgroup_destroy(name, "cdcwatch.made")
            _log.info("made the stream %s", name, extra={"topic": name})
        if not self._was_open:
            per_topic, live = self._settings.partitions, self._places.names[: self._places.live]
            self.made_topics = {self._topics[live.index(name) // per_topic] for name in missing if name in live}

    # -- writing -----------------------------------------------------------------------------------------------------

    def _send(self, client: Any, scripts: list[tuple[list[Any], bytes]], changes: int | None) -> None:
        """All of them in one go: each is refused where the one before it was, for the progress is another one then."""
        known = self._known
        with talking():
            pipeline = client.pipeline(transaction=False)
            for parts, progress in scripts:
                numbers, events = packed(parts)
                keys = [*self._own, *(self._places.names[number - 1] for number in numbers)]
                age_ms = int(self._settings.max_age_s * 1000)
                pipeline.evalsha(
                    self._digest(client, "publish"), len(keys), *keys,
                    self._slot, self._token, known, progress, age_ms, events,
                    sum(number <= self._places.live for number in numbers),
                )  # fmt: skip
                known = progress
            if changes is not None:
                failpoints.reached("redis.sent", changes)
            answers = pipeline.execute(raise_on_error=False)
            for answer, (_, progress) in zip(_raised(answers), scripts, strict=True):
                self._require_done(answer)
                self._known = progress
            self._wait(client)

    def _publish_aside(self, client: Any, chunks: Iterable[list[Any]], progress: bytes) -> None:
        staged, names = staged_key(self._settings, self._slot), self._places.names
        count = 0
        with talking():
            for parts in itertools.chain(chunks, [[]]):  # the last, so that there is nothing else where nothing comes
                for at in range(0, len(parts) or 1, 5 * SCRIPT_EVENTS):
                    some = parts[at : at + 5 * SCRIPT_EVENTS]
                    arguments = [self._slot, self._token, packed_all(some), count]
                    self._require_done(self._script(client, "stage", [self._own[0], staged], arguments))
                    count += len(some) // 5
            failpoints.reached("redis.staged")
            answer = self._script(
                client,
                "decide",
                [*self._own, staged, *names],
                [self._slot, self._token, self._known, progress, orjson.dumps(names), count],
            )
            self._require_done(answer)
            self._known = progress
            failpoints.reached("redis.decided")
            if count:
                self._move(client, names)
            self._wait(client)

    def _move(self, client: Any, names: list[str]) -> None:
        keys = [*self._own, staged_key(self._settings, self._slot), *names]
        while True:
            answer = self._script(client, "move", keys, [self._slot, self._token, MOVED_EVENTS])
            if answer[0] != b"more":
                self._require_done(answer)
                return
            failpoints.reached("redis.moved")

    def _require_done(self, answer: list[bytes]) -> None:
        said = answer[0].decode()
        if said == "fenced":
            raise FencedError(
                "Redis: the slot's events are written by another process, or the owner record was deleted",
                remedy="where another cdcwatch writes this slot's events, end one of the two",
            )
        if said == "changed":
            raise UnavailableError(
                "Redis: the progress record is not the one that was written last",
                remedy="nothing: it is read again by itself",
            )
        if said != "done":
            raise unfit(answer[1].decode(), said)

    def _wait(self, client: Any) -> None:
        """Until what was written is on the server's disk, where its acknowledgement doesn't say so."""
        if not self._waits:
            return
        # On one connection with a write: on one that was made anew it would have nothing to wait for.
        pipeline = client.pipeline(transaction=False)
        pipeline.evalsha(self._digest(client, "touch"), 2, *self._own, self._slot, self._token, self._known)
        pipeline.execute_command("WAITAOF", 1, 0, _WAITAOF_MS)
        touched, waited = _raised(pipeline.execute(raise_on_error=False))
        self._require_done(touched)
        if waited[0] < 1:
            raise UnavailableError("Redis: events are not on its disk yet", remedy="see the server's disk and load")

    def _script(self, client: Any, name: str, keys: list[str], arguments: list[Any]) -> Any:
        return client.evalsha(self._digest(client, name), len(keys), *keys, *arguments)

    def _digest(self, client: Any, name: str) -> str:
        """Loaded with every opening: a server that was restarted has forgotten it."""
        digest = self._digests.get(name)
        if digest is None:
            digest = self._digests[name] = client.script_load(lua(name))
        return digest

    def _running(self) -> Any:
        if self._client is None:
            raise UnavailableError("Redis: the sink is not open", remedy="it is opened again by itself")
        return self._client


def _raised(answers: Iterable[Any]) -> Iterator[Any]:
    """The answers of a pipeline. redis-py itself would write what was sent into the errors that it raises."""
    for answer in answers:
        if isinstance(answer, RedisError):
            raise answer
        yield answer


class _Chunks:
    """Of a read of the table: as it comes, so that it need not fit into memory."""

    def __init__(self, events: Iterable[Event], places: Places) -> None:
        self._events, self._places = events, places
        self.count = 0

    def __iter__(self) -> Any:
        parts: list[Any] = []
        for event in self._events:
            self.count += 1
            self._places.put(event, parts)
            if len(parts) >= 5 * SCRIPT_EVENTS:
                yield parts
                parts = []
        if parts:
            yield parts
