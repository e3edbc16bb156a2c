"""The schema registry's answers, each with what it means to an operator; nothing shows the password."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from confluent_kafka import Producer

from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError, UnavailableError
from cdcwatch.handoff.kafka import avro
from cdcwatch.handoff.kafka.producers import maker_of_producers
from cdcwatch.handoff.kafka.registry import Registry
from cdcwatch.handoff.kafka.registry_check import registry_checks
from cdcwatch.handoff.kafka.values import Values
from cdcwatch.local.process import free_port
from cdcwatch.pipeline.built import require_built
from cdcwatch.settings import KafkaSettings, RegistrySettings, Settings
from tests.certificates import Authority
from tests.events import sample_events
from tests.registry import SmallRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "hunter2"


@pytest.fixture
def small() -> Iterator[SmallRegistry]:
    with SmallRegistry() as registry:
        yield registry


def _settings(url: str, **options: Any) -> RegistrySettings:
    return RegistrySettings(url=url.replace("://", f"://reader:{SECRET}@"), **options)


def _refusal(settings: RegistrySettings) -> CdcwatchError:
    with pytest.raises(CdcwatchError) as raised:
        Registry(settings).ids(["orders"])
    assert SECRET not in f"{raised.value} {raised.value.remedy} {settings!r}"
    return raised.value


@pytest.mark.parametrize(
    ("status", "kind", "said", "remedy"),
    [
        (401, PreconditionError, "refuses us (HTTP 401)", "basic.auth.user.info"),
        (403, PreconditionError, "refuses us (HTTP 403)", "grant that user"),
        (404, PreconditionError, "no schema registry answers", "kafka.registry.url"),
        (409, PreconditionError, "another schema under orders-value", "another kafka.topic"),
        (422, PreconditionError, "refuses (HTTP 422)", "registry's log"),
        (429, UnavailableError, "can't answer (HTTP 429)", "registry's log"),
        (500, UnavailableError, "can't answer (HTTP 500)", "registry's log"),
        (503, UnavailableError, "can't answer (HTTP 503)", "registry's log"),
    ],
)
def test_a_refusal_says_what_to_do(
    small: SmallRegistry, status: int, kind: type[CdcwatchError], said: str, remedy: str
) -> None:
    small.status = status
    error = _refusal(_settings(small.url))
    assert type(error) is kind
    assert said in str(error)
    assert remedy in error.remedy
    assert small.asked == 1, "our own back-off asks again, not the client"


def test_one_that_is_away_or_is_no_registry_is_told_apart(small: SmallRegistry) -> None:
    away = _refusal(_settings(f"http://127.0.0.1:{free_port()}"))
    assert type(away) is UnavailableError
    elsewhere = _refusal(_settings(f"{small.url}/elsewhere"))
    assert type(elsewhere) is PreconditionError
    assert "no schema registry answers" in str(elsewhere)
    with pytest.raises(PreconditionError, match="no schema registry answers"):
        Registry(_settings(f"{small.url}/elsewhere")).known("orders")


@pytest.mark.parametrize(
    "client", [{"no.such.option": SECRET}, {"ssl.ca.location": f"/nowhere/{SECRET}"}, {"basic.auth.user.info": SECRET}]
)
def test_an_option_that_the_client_does_not_take_is_a_mistake_of_the_configuration(client: dict[str, str]) -> None:
    error = _refusal(RegistrySettings(url="https://127.0.0.1:1", client=client))
    assert type(error) is ConfigurationError
    assert "[kafka.registry.client]" in error.remedy


def test_a_schema_is_registered_once_or_must_be_there(small: SmallRegistry) -> None:
    missing = _refusal(_settings(small.url, register=False))
    assert type(missing) is PreconditionError
    assert "doesn't have this version's schema under orders-value" in str(missing)
    assert "cdcwatch schema --register" in missing.remedy
    assert Registry(_settings(small.url)).ids(["orders", "shops"]) == {"orders": 1, "shops": 2}
    assert Registry(_settings(small.url, register=False)).ids(["shops"]) == {"shops": 2}
    assert Registry(_settings(small.url)).schema(2) == avro.compact_schema()
    assert Registry(_settings(small.url)).schema(3) is None


def test_the_numbers_are_asked_for_until_they_are_known_and_never_again(small: SmallRegistry) -> None:
    settings = KafkaSettings(format="avro", registry=_settings(small.url))
    make = maker_of_producers(settings, ["orders"])
    small.status = 503
    with pytest.raises(UnavailableError):
        make({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    small.status = 200
    assert isinstance(make({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}), Producer)
    small.status = 503
    asked = small.asked
    make({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    assert small.asked == asked
    assert maker_of_producers(KafkaSettings(), ["orders"]) is Producer


def test_a_reader_asks_for_a_schema_that_the_headers_do_not_tell_and_asks_once(small: SmallRegistry) -> None:
    event = next(sample_events())
    body, _ = avro.Encoder().encode(event.value)
    assert Registry(_settings(small.url)).ids(["orders"]) == {"orders": 1}
    as_json = Values(KafkaSettings(registry=_settings(small.url))).as_json
    asked = small.asked
    for _ in range(3):
        assert orjson.loads(as_json(b"\0\0\0\0\1" + body, list) or b"") == orjson.loads(event.value)
        assert as_json(b"\0\0\0\0\5" + body, list) == b"\0\0\0\0\5" + body
    assert small.asked == asked + 2
    small.status = 503
    with pytest.raises(UnavailableError):
        as_json(b"\0\0\0\0\6" + body, list)


def test_certificate_and_name_are_verified(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    authority = Authority(tmp_path / "authority")
    options: list[dict[str, Any]] = [{}, {"ssl.ca.location": str(authority.path)}]
    with SmallRegistry(certificate=authority.issue("IP:127.0.0.1")) as registry:
        unknown = _refusal(_settings(registry.url, client=options[0]))
        assert Registry(_settings(registry.url, client=options[1])).ids(["orders"]) == {"orders": 1}
    with SmallRegistry(certificate=authority.issue("DNS:elsewhere.example")) as registry:
        other_name = _refusal(_settings(registry.url, client=options[1]))
    for error in (unknown, other_name):
        assert type(error) is PreconditionError
        assert "can't be verified" in str(error)
        assert "ssl.ca.location" in error.remedy
    capfd.readouterr()  # the server's own complaints about the handshakes


@pytest.mark.parametrize("package", ["fastavro", "httpx2", "confluent_kafka.schema_registry"])
def test_without_the_extra_it_is_said_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("avro", "registry"):
        monkeypatch.delitem(sys.modules, f"cdcwatch.handoff.kafka.{name}")
        monkeypatch.delattr(f"cdcwatch.handoff.kafka.{name}")
    settings = KafkaSettings(format="avro", registry=_settings("http://127.0.0.1:1"))
    for asked in (
        lambda: maker_of_producers(settings, ["orders"]),
        lambda: require_built(Settings(kafka=settings), "all"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            asked()
        assert raised.value.remedy == "pip install 'cdcwatch[avro]'"


def test_check_judges_every_topic_and_the_link(small: SmallRegistry) -> None:
    def lines(**options: Any) -> list[tuple[str, str]]:
        settings = Settings(kafka=KafkaSettings(format="avro", topic="orders", registry=RegistrySettings(**options)))
        found = registry_checks(settings)
        assert SECRET not in repr(found)
        return [(one.name, one.state) for one in found]

    assert registry_checks(Settings()) == []
    assert lines(url=small.url) == [("registry", "ok")]
    assert lines(url=small.url, register=False) == [("registry", "fail")]
    Registry(RegistrySettings(url=small.url)).register("orders")
    assert lines(url=small.url, register=False) == [("registry", "ok")]
    small.status = 401
    assert lines(url=small.url) == [("registry", "fail")]
    away = f"http://reader:{SECRET}@registry.invalid:{free_port()}"
    assert lines(url=away) == [("registry", "fail"), ("registry_tls", "warn")]
