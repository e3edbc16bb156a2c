from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdcwatch.configuration import is_unconfigured, load_settings
from cdcwatch.errors import ConfigurationError
from cdcwatch.settings import Settings, alternatives

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2"


def _load(text: str, tmp_path: Path, environment: dict[str, str] | None = None) -> Settings:
    path = tmp_path / "shop.toml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, environment or {})


def test_without_a_file_everything_has_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings(None, {}) == Settings()
    assert is_unconfigured(None, {"PATH": "x", "CDCWATCH_UNRELATED": "y"})
    assert not is_unconfigured(None, {"CDCWATCH_SLOT__NAME": "mine"})
    assert not is_unconfigured(tmp_path / "shop.toml", {})
    (tmp_path / "cdcwatch.toml").touch()
    assert not is_unconfigured(None, {})


def test_the_file_in_the_working_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cdcwatch.toml").write_text('[slot]\nname = "mine"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_settings(None, {}).slot.name == "mine"


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml: No such file"):
        load_settings(tmp_path / "nowhere.toml", {})


def test_broken_toml_names_the_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="line 1"):
        _load("[slot\n", tmp_path)


@pytest.mark.parametrize(
    "text", ["[slots]\nname = 'x'\n", "[slot]\nnmae = 'x'\n", "[close.claim]\nurll = 'x'\n", "name = 'x'\n"]
)
def test_unknown_keys_are_errors(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown key"):
        _load(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ("a",)),
        ("new|old", ("new", "old")),
        ("a||b", ("a|b",)),
        ("a|||b", ("a|", "b")),
        ("|a|", ("a",)),
        ("", ()),
    ],
)
def test_a_column_may_have_several_names_and_bars_in_them(text: str, names: tuple[str, ...]) -> None:
    assert alternatives(text) == names


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "europe/amsterdam", "/etc/passwd", "../UTC", "Europe", "+02", " "])
def test_an_unknown_time_zone_is_an_error(zone: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"table\.time_zone") as caught:
        _load(f'[table]\ntime_zone = "{zone}"\n', tmp_path)
    assert "Europe/Amsterdam" in caught.value.remedy


def test_a_known_time_zone_is_kept(tmp_path: Path) -> None:
    assert _load('[table]\ntime_zone = "America/New_York"\n', tmp_path).table.time_zone == "America/New_York"


@pytest.mark.parametrize("name", ["CDCWATCH_SLOT__NMAE", "CDCWATCH_SLOTS__NAME", "CDCWATCH_CLOSE__CLAIM__URLL"])
def test_unknown_keys_of_the_environment_are_errors_and_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        load_settings(None, {name: SECRET})


def test_the_environment_goes_over_the_file(tmp_path: Path) -> None:
    settings = _load(
        '[slot]\nname = "mine"\n[close]\nbatch_rows = 7\n',
        tmp_path,
        {
            "CDCWATCH_SLOT__NAME": "other",
            "CDCWATCH_CLOSE__BATCH_ROWS": "9",
            "CDCWATCH_TABLE__OPEN": '["pending", "held, maybe"]',
            "CDCWATCH_TABLE__KEY": "tenant, id",
            "CDCWATCH_CLOSE__CLAIM__URL": "http://localhost/close",
            "CDCWATCH_KAFKA__CREATE_TOPIC": "true",
            "CDCWATCH_KAFKA__CLIENT": '{"security.protocol": "ssl"}',
            "CDCWATCH_UNRELATED": "no section: not a key",
        },
    )
    assert settings.slot.name == "other"
    assert settings.close.batch_rows == 9
    assert settings.table.open == ("pending", "held, maybe")
    assert settings.table.key == ("tenant", "id")
    assert settings.close.claim.url == "http://localhost/close"
    assert settings.kafka.create_topic is True
    assert settings.kafka.client == {"security.protocol": "ssl"}


@pytest.mark.parametrize(
    "text",
    [
        '[slot]\nname = "Upper"\n',
        '[slot]\nname = ""\n',
        '[slot]\nplugin = "decoderbufs"\n',
        "[close]\nbatch_rows = 0\n",
        '[close]\nbatch_rows = "many"\n',
        '[kafka]\ntopic = "a b"\n',
        '[telemetry]\nlisten = "nowhere"\n',
        "[sweep]\ninterval_s = -1\n",
    ],
)
def test_values_of_the_wrong_kind_are_errors(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="configuration: "):
        _load(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[slot]\nname = "Upper"\n', "Expected lower-case letters, digits and _, at most 63 - at `slot.name`"),
        ('[kafka]\ntopic = "a b"\n', "Expected letters, digits, dots, _ and -, at most 240 - at `kafka.topic`"),
        ('[telemetry]\nlisten = "x"\n', "Expected host:port, or an empty text for none - at `telemetry.listen`"),
    ],
)
def test_patterns_are_told_in_words(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _load(text, tmp_path)
    assert str(caught.value) == f"configuration: {said}"


CLAIM = '[close]\naction = "claim"\n[close.claim]\nurl = "https://shop.example/close"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[table]\nopen = []\n", "open is empty"),
        ('[close]\nstatus = "pending"\n', "stay open"),
        ('[table]\nstatus = ""\n', "stay open"),
        ('[close]\nset = { version = "1" }\n', "version"),
        ('[close]\naction = "delete"\nset = { note = "1" }\n', "leaves no row"),
        ('[close]\naction = "claim"\n', "no http"),
        ('[close]\naction = "claim"\n[close.claim]\nurl = "ftp://x/"\n', "no http"),
        (f'[table]\nstatus = ""\n{CLAIM}', "needs table.status"),
        (f'{CLAIM}failed = "expired"\n', "share expired"),
        (f'{CLAIM}processing = "pending"\n', "share pending"),
        (f"{CLAIM}stuck_after_s = 19\n", "less than twice timeout_s"),
    ],
)
def test_what_no_single_key_can_tell(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        _load(text, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '[table]\nstatus = ""\n[close]\naction = "delete"\n',
        '[table]\nstatus = ""\n[close]\naction = "none"\n',
        '[table]\nstatus = ""\nversion = ""\n[close]\nset = { expires_at = "NULL" }\n',
        '[table]\nstatus = ""\ndeadline = "until|expires_at"\n[close]\nset = { until = "until + interval \'1 d\'" }\n',
    ],
)
def test_without_a_status_a_close_deletes_the_row_or_writes_its_deadline(text: str, tmp_path: Path) -> None:
    assert _load(text, tmp_path).table.status == ""


def test_passwords_are_in_no_repr_and_in_no_error(tmp_path: Path) -> None:
    settings = _load(
        f'[postgres]\ndsn = "password={SECRET}"\nreplication_dsn = "password={SECRET}"\n[sweep]\ndsn = "password={SECRET}"\n'
        f'[redis]\nurl = "redis://:{SECRET}@localhost"\n[kafka.client]\n"sasl.password" = "{SECRET}"\n',
        tmp_path,
    )
    claiming = _load(f'[close.claim]\nurl = "https://shop:{SECRET}@shop.example/"\n', tmp_path)
    assert SECRET not in repr(settings) + repr(claiming)
    assert SECRET not in str(settings)
    assert settings.postgres.for_replication() == f"password={SECRET}"
    with pytest.raises(ConfigurationError) as caught:
        load_settings(None, {"CDCWATCH_CLOSE__BATCH_ROWS": SECRET})
    assert SECRET not in f"{caught.value} {caught.value.remedy}"


SEVERAL = """
[kafka]
topic = "shop"
[close]
status = "closed"
[[table]]
name = "public.orders"
topic = "orders.deadlines"
[[table]]
name = "public.reservations"
topic = "reservations.deadlines"
deadline = "reserved_until"
[table.close]
action = "claim"
[table.close.claim]
url = "https://shop.example/release"
"""


def test_every_table_of_a_list_has_settings_as_if_it_were_alone(tmp_path: Path) -> None:
    settings = _load(SEVERAL, tmp_path)
    orders, reservations = settings.each()
    assert (orders.table.name, orders.close.status, orders.close.action) == ("public.orders", "closed", "update")
    assert (reservations.table.deadline, reservations.close.status) == ("reserved_until", "expired")
    assert reservations.close.claim.url == "https://shop.example/release"
    assert [one.for_events().topic for one in settings.each()] == ["orders.deadlines", "reservations.deadlines"]
    assert {one.kafka.topic for one in settings.each()} == {"shop"}
    assert [one.is_shared for one in (settings, orders)] == [False, True]
    assert orders.each() == (orders,)


def test_one_table_in_a_list_is_that_table(tmp_path: Path) -> None:
    settings = _load('[[table]]\nname = "a"\n[table.close]\nstatus = "gone"\n', tmp_path)
    assert (settings.table.name, settings.close.status, settings.for_events().topic) == (
        "a",
        "gone",
        "orders.deadlines",
    )
    assert settings.each() == (settings,)
    named = _load('[[table]]\nname = "a"\ntopic = "mine"\n', tmp_path)
    assert (named.for_events().topic, named.kafka.topic) == ("mine", "orders.deadlines")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[table]]\nnmae = "a"\n', r"unknown key `nmae` - at `table\[0\]`"),
        (SEVERAL + 'urll = "x"\n', r"unknown key `urll` - at `table\[1\]\.close\.claim`"),
        (SEVERAL.replace('topic = "orders.deadlines"', ""), r"table\[0\]\.topic is missing"),
        (SEVERAL.replace('"orders.deadlines"', '"reservations.deadlines"'), "the topic reservations.deadlines"),
        (
            SEVERAL.replace('"orders.deadlines"', '"reservations.deadlines.dead"'),
            "the topic reservations.deadlines.dead",
        ),
        (SEVERAL.replace('"orders.deadlines"', '"shop.progress"'), "the topic shop.progress"),
        (SEVERAL.replace("public.reservations", "public.orders"), "public.orders more than once"),
        (SEVERAL.replace('url = "https', 'url = "ftp'), "close.claim.url"),
        ('[table]\ntopic = "x"\n', "unknown key `topic`"),
    ],
)
def test_what_is_wrong_with_a_list_of_tables_is_told_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        _load(text, tmp_path)


def test_the_environment_gives_the_whole_list(tmp_path: Path) -> None:
    listed = '[{"name": "a", "topic": "ta"}, {"name": "b", "topic": "tb", "close": {"status": "gone"}}]'
    settings = _load("[table]\nname = 'other'\n", tmp_path, {"CDCWATCH_TABLE": listed})
    assert [(one.table.name, one.close.status) for one in settings.each()] == [("a", "expired"), ("b", "gone")]
    for wrong in ("{}", "public.orders"):
        with pytest.raises(ConfigurationError, match="CDCWATCH_TABLE: not a JSON list"):
            _load("", tmp_path, {"CDCWATCH_TABLE": wrong})
    with pytest.raises(ConfigurationError, match="CDCWATCH_TABLE__NAME: table is not a section"):
        _load(SEVERAL, tmp_path, {"CDCWATCH_TABLE__NAME": "x"})


def test_a_text_of_the_environment_is_a_text_whatever_it_begins_with(tmp_path: Path) -> None:
    settings = _load("", tmp_path, {"CDCWATCH_SLOT__PUBLICATION": "[orders]", "CDCWATCH_TABLE__OPEN": "a, b"})
    assert settings.slot.publication == "[orders]"
    assert settings.table.open == ("a", "b")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('format = "avro"\n', "needs a schema registry"),
        ('[kafka.registry]\nurl = "registry:hunter2@x"\n', "no http"),
        ('[kafka.registry]\nurl = "https://a,b"\n', "no http"),
        ('format = "protobuf"\n', "kafka.format"),
    ],
)
def test_avro_needs_a_registry(keys: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        _load(f"[kafka]\n{keys}", tmp_path)
    assert SECRET not in str(raised.value)


def test_the_registry_comes_from_the_environment_too(tmp_path: Path) -> None:
    environment = {
        "CDCWATCH_KAFKA__FORMAT": "avro",
        "CDCWATCH_KAFKA__REGISTRY__URL": f"https://user:{SECRET}@registry.example",
        "CDCWATCH_KAFKA__REGISTRY__CLIENT": f'{{"basic.auth.user.info": "user:{SECRET}"}}',
    }
    kafka = _load("", tmp_path, environment).kafka
    assert kafka.registry.url.endswith("registry.example")
    assert kafka.registry.client == {"basic.auth.user.info": f"user:{SECRET}"}
    assert SECRET not in repr(kafka)
