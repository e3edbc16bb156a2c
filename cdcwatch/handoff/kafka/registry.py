"""Confluent Schema Registry, or what speaks its protocol, through confluent-kafka's client: once at the start.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError, UnavailableError
from cdcwatch.handoff.kafka.avro import compact_schema

try:
    import httpx2
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError
except ImportError:
    raise ConfigurationError(
        "the schema registry's client needs further Python packages", remedy="pip install 'cdcwatch[avro]'"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    from cdcwatch.settings import RegistrySettings

    _Answer = TypeVar("_Answer")

# Ours is the next try, as with the broker: the client itself tries once, and for a few seconds.
_DEFAULTS: Final = {"timeout": 5.0, "max.retries": 0}
_REFUSED: Final = frozenset({401, 403})
_MISSING: Final = 404
_CONFLICT: Final = 409
_TOO_MANY: Final = 429
_UNABLE: Final = 500
_LONGEST: Final = 200
_log = logging.getLogger(__name__)
# httpx writes a line with the address for each request.
logging.getLogger("httpx2").setLevel(logging.WARNING)


def subject_of(topic: str) -> str:
    """Under which the registry keeps the schema of the topic's values: the name that every client expects."""
    return f"{topic}-value"


def shown(url: str) -> str:
    """The address without user and password."""
    shown_urls = []
    for one in url.split(","):
        parts = urlsplit(one.strip())
        shown_urls.append(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
    return ",".join(shown_urls)


class Registry:
    """Asks with a connection for each question.

    Every method: UnavailableError, PreconditionError, ConfigurationError.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        """Connects to nothing yet."""
        self._settings = settings
        self._shown = shown(settings.url)

    def ids(self, topics: Iterable[str]) -> dict[str, int]:
        """The number of our schema under each topic's subject; registers it where the settings say so."""
        return {topic: self._id(topic) for topic in topics}

    def subject(self, topic: str) -> str:
        """Its name, and where."""
        return f"{subject_of(topic)} at {self._shown}"

    def schema(self, number: int) -> str | None:
        """The text of a schema; None where the registry has none of that number."""
        return self._asked(lambda client: client.get_schema(number).schema_str, or_none=True)

    def known(self, topic: str) -> int | None:
        """The number that our schema has under the topic's subject; None: it isn't there."""
        return self._asked(lambda client: client.lookup_schema(subject_of(topic), _ours()).schema_id, or_none=True)

    def fits(self, topic: str) -> bool:
        """Whether it could be registered beside what is there."""
        return self._asked(lambda client: client.test_compatibility(subject_of(topic), _ours()), or_none=True) in {
            True,
            None,
        }

    def register(self, topic: str) -> int:
        """Registers our schema; one that is there keeps its number."""
        subject = subject_of(topic)
        number = self._asked(lambda client: client.register_schema(subject, _ours()), topic=topic)
        if number is None:
            raise self._no_registry()
        _log.info("the schema of %s has the number %d in the registry", subject, number, extra={"subject": subject})
        return number

    def _id(self, topic: str) -> int:
        if self._settings.register:
            return self.register(topic)
        number = self.known(topic)
        if number is None:
            raise self.not_there(topic)
        return number

    def not_there(self, topic: str) -> PreconditionError:
        """Of a schema that the settings forbid to register."""
        return PreconditionError(
            f"the schema registry at {self._shown} doesn't have this version's schema under {subject_of(topic)}",
            remedy="`cdcwatch schema --register` by a user who may, or kafka.registry.register = true",
        )

    def conflict(self, topic: str, said: str = "") -> PreconditionError:
        """Of what stands under the topic's subject and can't be read with ours, or the other way round."""
        subject = subject_of(topic)
        return PreconditionError(
            f"the schema registry has another schema under {subject}, with which ours is not compatible"
            + (f": {said}" if said else ""),
            remedy=f"use another kafka.topic, or delete the subject {subject} if nobody reads with it any more",
        )

    def _no_registry(self) -> PreconditionError:
        return PreconditionError(
            f"no schema registry answers at {self._shown}",
            remedy="mend kafka.registry.url: with the path, where the registry has one (Apicurio: /apis/ccompat/v7)",
        )

    def _asked(
        self, question: Callable[[SchemaRegistryClient], _Answer], *, or_none: bool = False, topic: str = ""
    ) -> _Answer | None:
        try:
            with self._client() as client:
                return question(client)
        except SchemaRegistryError as error:
            if error.http_status_code == _MISSING and or_none and error.error_code > _MISSING:
                return None
            raise self._explained(error, topic) from None
        except httpx2.InvalidURL:
            raise self._no_registry() from None
        except httpx2.TransportError as error:
            raise self._away(error) from None
        except (ValueError, KeyError, AttributeError):  # an answer, but not a registry's
            raise self._no_registry() from None

    def _client(self) -> SchemaRegistryClient:
        try:
            return SchemaRegistryClient({**_DEFAULTS, **self._settings.client, "url": self._settings.url})
        except (ValueError, TypeError, OSError, ssl.SSLError) as error:
            # Of its texts only that one holds no value.
            said = str(error) if str(error).startswith("Unrecognized properties") else "an option is not accepted"
            raise ConfigurationError(
                f"the schema registry's client: {said}", remedy="mend kafka.registry.url and [kafka.registry.client]"
            ) from None

    def _explained(self, error: SchemaRegistryError, topic: str) -> CdcwatchError:
        status = error.http_status_code
        said = str(error.error_message).partition("\n")[0][:_LONGEST]
        if status in _REFUSED:
            return PreconditionError(
                f"the schema registry at {self._shown} refuses us (HTTP {status})",
                remedy='set "basic.auth.user.info" = "user:password" in [kafka.registry.client], or grant that user'
                " what it lacks",
            )
        if status == _CONFLICT:
            return self.conflict(topic, said)
        if status == _MISSING and error.error_code <= _MISSING:
            return self._no_registry()
        if status >= _UNABLE or status == _TOO_MANY:
            return UnavailableError(
                f"the schema registry at {self._shown} can't answer (HTTP {status})", remedy="see the registry's log"
            )
        return PreconditionError(
            f"the schema registry at {self._shown} refuses (HTTP {status}): {said}", remedy="see the registry's log"
        )

    def _away(self, error: Exception) -> CdcwatchError:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return PreconditionError(
                f"the certificate of the schema registry at {self._shown} can't be verified",
                remedy='set "ssl.ca.location" in [kafka.registry.client] to its authority, or renew the certificate',
            )
        return UnavailableError(
            f"the schema registry at {self._shown} doesn't answer ({type(error).__name__})",
            remedy="see that it is up, and mend kafka.registry.url",
        )


def _ours() -> Any:
    return Schema(compact_schema(), "AVRO")
