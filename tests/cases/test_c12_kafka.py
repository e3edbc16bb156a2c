"""C12 on the broker's side: a listener with SASL_SSL and an authority of the test's own; and no secret shows anywhere."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from cdcwatch.configuration import load_settings
from cdcwatch.local import LocalKafka
from cdcwatch.local.process import free_port
from tests import services
from tests.certificates import Authority
from tests.command import cdcwatch, run_to_the_end, write_configuration
from tests.oracle.world import Process, World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Database

CANARY = "c4nary-S3cret"
TOPIC = "orders"
_LOGIN = "org.apache.kafka.common.security.{} required{};"


class Secured:
    """A broker that lets the user app in with the canary, over TLS."""

    def __init__(self, broker: LocalKafka, port: int, folder: Path) -> None:
        self.broker, self.port = broker, port
        self.authority, self.other = Authority(folder / "good"), Authority(folder / "other")
        certificate = self.authority.issue("IP:127.0.0.1")
        store = folder / "broker.pem"
        store.write_text(certificate.key.read_text() + certificate.path.read_text())
        properties = broker._properties
        for name in ("listeners", "advertised.listeners"):
            properties[name] += f",SECURED://127.0.0.1:{port}"
        properties["listener.security.protocol.map"] += ",SECURED:SASL_SSL"
        login = {
            "plain": _LOGIN.format("plain.PlainLoginModule", f' user_app="{CANARY}"'),
            "scram-sha-512": _LOGIN.format("scram.ScramLoginModule", ""),
        }
        properties |= {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.secured.ssl.keystore.type": "PEM",
            "listener.name.secured.ssl.keystore.location": str(store),
            **{f"listener.name.secured.{name}.sasl.jaas.config": text for name, text in login.items()},
        }

    def let_app_in(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0})
        user = UserScramCredentialUpsertion(
            "app", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), CANARY.encode()
        )
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(20)

    def client(self, **changes: str) -> str:
        """The section [kafka.client]; `changes` with _ for the dots, an empty text leaves a key out."""
        keys = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "app",
            "sasl.password": CANARY,
            "ssl.ca.location": str(self.authority.path),
            **{name.replace("_", "."): value for name, value in changes.items()},
        }
        return "[kafka.client]\n" + "".join(f'"{name}" = "{value}"\n' for name, value in keys.items() if value)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with services.scratch_directory() as folder:
        made = Secured(LocalKafka(folder / "kafka"), free_port(), tmp_path_factory.mktemp("certificates"))
        with made.broker:
            made.let_app_in()
            services.create_topic(made.broker, TOPIC, partitions=1)
            yield made


@pytest.fixture(scope="module")
def guarded() -> Iterator[services.Database]:
    """A database whose owner, app, needs the canary as its password."""
    with services.local_postgres() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE app LOGIN SUPERUSER PASSWORD '{CANARY}'")
        hba = server.directory / "data" / "pg_hba.conf"
        hba.write_text("host all app 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        server.reload()
        database = services.Database("postgres", server.dsn(user="app"))

        def is_guarded() -> bool:
            try:
                database.connect(password="wrong").close()
            except psycopg.OperationalError:
                return True
            return False

        wait_until(is_guarded, 20, "the server asks for the password")
        database.dsn += f" password={CANARY}"
        yield database


@pytest.fixture
def world(secured: Secured, guarded: Database, tmp_path: Path) -> Iterator[World]:
    """The service as app, on both sides; the topic is read over the broker's other listener."""
    with World(guarded, secured.broker.bootstrap_servers, TOPIC, tmp_path, extra=secured.client()) as world:
        text = world.configuration.read_text()
        world.configuration.write_text(text.replace(secured.broker.bootstrap_servers, f"127.0.0.1:{secured.port}"))
        yield world


def told(path: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(cdcwatch("check", "--json", "-c", path).out)["checks"]}


def test_c12_run_events_and_check_work_over_sasl_and_tls_and_show_no_secret(world: World, secured: Secured) -> None:
    world.install()
    world.listen()
    said = ""
    with world.running() as process:
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp())")
        world.wait_nothing_due()
        world.wait_confirmed()
        # What goes wrong while it runs is told, too.
        world.connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        wait_until(lambda: "the stream goes on" in world.log.read_text(), 60, "the reader comes back")
        for page in ("metrics", "readyz", "healthz"):
            with contextlib.suppress(urllib.error.HTTPError):
                said += urllib.request.urlopen(f"http://127.0.0.1:{world._port}/{page}", timeout=60).read().decode()
        tasks = Path(f"/proc/{process.pid}/task")
        said += Path(f"/proc/{process.pid}/cmdline").read_text()
        for task in tasks.iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread may end while the others are looked at
                said += (task / "comm").read_text()
    world.judge()
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        text = world.configuration.read_text()
        world.configuration.write_text(
            text.replace(secured.client(), secured.client(sasl_mechanism=mechanism, debug="all"))
        )
        checks = told(world.configuration)
        assert checks["kafka"]["state"] == checks["topic"]["state"] == checks["progress"]["state"] == "ok"
        assert checks["kafka_tls"]["message"] == "the link to Kafka is encrypted (SASL_SSL), the brokers are verified"
        events = cdcwatch("events", "--from-beginning", "--json", "-c", world.configuration)
        assert events.code == 0
        assert "deadline.expired" in events.out
        said += events.said + cdcwatch("explain", "1", "--debug", "-c", world.configuration).said
        world.configuration.write_text(text)
    said += world.log.read_text() + repr(load_settings(world.configuration)) + str(load_settings(world.configuration))
    assert CANARY not in said


REFUSALS: dict[str, tuple[dict[str, str], str, str]] = {
    "password": ({"sasl_password": f"{CANARY}x"}, "SASL authentication error", "sasl.password in [kafka.client]"),
    "authority": ({"ssl_ca_location": "OTHER"}, "certificate verify failed", "set ssl.ca.location"),
    "name": ({"BOOTSTRAP": "localhost"}, "certificate verify failed", "set ssl.ca.location"),
}


@pytest.mark.parametrize("wrong", REFUSALS)
def test_c12_every_command_tells_at_once_why_the_broker_is_no_use(world: World, secured: Secured, wrong: str) -> None:
    changes, message, remedy = REFUSALS[wrong]
    changes = dict(changes)
    text = world.configuration.read_text()
    if changes.get("ssl_ca_location"):
        changes["ssl_ca_location"] = str(secured.other.path)
    text = text.replace(f"127.0.0.1:{secured.port}", f"{changes.pop('BOOTSTRAP', '127.0.0.1')}:{secured.port}")
    world.configuration.write_text(text.replace(secured.client(), secured.client(**changes)))
    world.connection.execute("DROP TABLE IF EXISTS orders CASCADE")
    with contextlib.suppress(psycopg.errors.UndefinedObject):
        world.connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    world.connection.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, expires_at timestamptz, version int)"
    )
    world.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", [world.slot])
    check = told(world.configuration)["kafka"]
    assert (check["state"], check["unreachable"]) == ("fail", False)
    assert message in check["message"]
    assert remedy in check["remedy"]
    said = json.dumps(check)
    for runs, command in ((cdcwatch, "events"), (run_to_the_end, "run")):
        ended = runs(command, "--debug", "-c", world.configuration)
        assert ended.code == 3, ended
        assert f"{message}" in ended.err
        assert ended.err.count("\nremedy: ") == 1
        assert remedy in ended.err
        said += ended.said
    explained = cdcwatch("explain", "1", "-c", world.configuration)
    assert message in explained.out
    assert CANARY not in said + explained.said


def _postgres_mistakes(guarded: Database) -> Iterator[str]:
    good = {key: str(value) for key, value in psycopg.conninfo.conninfo_to_dict(guarded.dsn).items()}
    nowhere = str(free_port())
    for changes in (
        {"port": nowhere},
        {"host": "no.such.host.invalid"},
        {"password": f"{CANARY}x"},
        {"dbname": "none"},
        {"sslmode": "bogus"},
        {"connect_timeout": "soon"},
        {"sslmode": "require"},
        {"sslrootcert": "/nowhere", "sslmode": "verify-full"},
        {"options": "-c no.such=1 -c bogus"},
    ):
        yield (
            psycopg.conninfo.make_conninfo(**{**good, "connect_timeout": "5"})
            if not changes
            else " ".join(f"{key}='{value}'" for key, value in {**good, **changes}.items())
        )
    yield f"{guarded.dsn} no_such_keyword=1"
    yield f"{guarded.dsn} broken"
    yield f"postgresql://app:{CANARY}@127.0.0.1:{nowhere}/postgres"
    yield f"postgresql://app:{CANARY}@127.0.0.1:port/postgres"
    yield f"postgresql://app:{CANARY}x@127.0.0.1:{good['port']}/postgres?sslmode=bogus"
    yield f"postgresql://app@127.0.0.1:{nowhere}/postgres?password={CANARY}"
    yield f"postgresql://app@127.0.0.1:{nowhere}/postgres?pasword={CANARY}"


def _kafka_mistakes(secured: Secured, folder: Path) -> Iterator[str]:
    key = folder / "own.key"
    key.write_text("nonsense")
    yield secured.client(sasl_mechanism="OAUTHBEARER")
    yield secured.client(sasl_mechanism="GSSAPI")
    yield secured.client(sasl_mechanism="NONE-SUCH")
    yield secured.client(security_protocol="PLAINTEXT")
    yield secured.client(security_protocol="SASL_PLAINTEXT")
    yield secured.client(ssl_key_location=str(key), ssl_key_password=CANARY)
    yield secured.client(ssl_keystore_location=str(key), ssl_keystore_password=CANARY)
    yield secured.client(ssl_key_pem=CANARY)
    yield secured.client(ssl_certificate_pem=CANARY)
    yield secured.client(no_such_key=CANARY)
    yield secured.client(sasl_jaas_config=f'x required password=\\"{CANARY}\\"')
    yield secured.client(socket_timeout_ms=CANARY)  # a value in the wrong line
    yield secured.client(security_protocol=CANARY)
    yield secured.client().replace(f'"{CANARY}"', f'["{CANARY}"]')
    yield secured.client().replace(f'"{CANARY}"', f'{{ password = "{CANARY}" }}')
    yield secured.client().replace(f'"{CANARY}"', f'"{CANARY}')
    yield secured.client().replace(f'"{CANARY}"', CANARY)
    yield secured.client().replace('"sasl.password"', "sasl.password")
    yield f'client = "{CANARY}"\n'


def _run(path: Path, log: Path) -> str:
    """What `run` says until it ends, or means to try again."""
    log.write_text("")
    process = Process(path, log)
    try:
        wait_until(lambda: not process.is_running or "again in" in log.read_text(), 60, "it tells what is wrong")
    finally:
        process.kill()
    return log.read_text()


def test_c10_no_mistake_in_the_configuration_shows_a_secret(
    secured: Secured, guarded: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdcwatch.handoff.kafka.client.METADATA_TIMEOUT_S", 0.5)
    path, log = tmp_path / "shop.toml", tmp_path / "log"
    quiet = '[sink]\nkind = "none"\n[telemetry]\nlisten = ""\n'
    kafka = f'[telemetry]\nlisten = ""\n[kafka]\nbootstrap_servers = "127.0.0.1:{secured.port}"\ntopic = "{TOPIC}"\n'
    said: list[tuple[str, str]] = []

    def tell(what: str, *arguments: str) -> None:
        ended = cdcwatch(*arguments, "--debug", "-c", path)
        assert ended.code != 0, (what, ended)
        said.append((what, ended.said))

    for dsn in _postgres_mistakes(guarded):
        write_configuration(path, dsn, quiet)
        tell(dsn, "slot", "list")
        write_configuration(path, guarded.dsn, f'replication_dsn = "{dsn}"\n{quiet}')
        tell(f"replication {dsn}", "check")
    said.append(("run, the stream's DSN", _run(path, log)))
    write_configuration(path, guarded.dsn.replace(CANARY, f"{CANARY}x"), quiet)
    said.append(("run, the password", _run(path, log)))
    for section in _kafka_mistakes(secured, tmp_path):
        write_configuration(path, guarded.dsn, kafka + section)
        tell(section, "events")
    write_configuration(path, guarded.dsn, kafka + secured.client(security_protocol="SASL_PLAINTEXT"))
    said.append(("run, the protocol", _run(path, log)))
    for text in (
        f'pasword = "{CANARY}"\n',
        f'dsn = ["{CANARY}"]\n',
        f'dsn = "host=127.0.0.1 password={CANARY}\n',
        f"[postgres]\ndsn = {CANARY}\n",
        f'[sweep]\ndsn = "password={CANARY}"\nbatch_rows = 0\n',
    ):
        path.write_text(text if text.startswith("[") else f"[postgres]\n{text}")
        said.append((text, cdcwatch("run", "--debug", "-c", path).said))
    redis = f'[redis]\nurl = "redis://:{CANARY}@127.0.0.1:1/0"\n[sink]\nkind = "redis"\n'
    path.write_text(redis)
    said.append((redis, cdcwatch("check", "--debug", "-c", path).said))  # `run` would wait for the server
    write_configuration(path, guarded.dsn, kafka)
    for name, value in {
        "CDCWATCH_POSTGRES__DSN": f"host=127.0.0.1 port=1 password={CANARY}",
        "CDCWATCH_POSTGRES__REPLICATION_DSN": f"postgresql://app:{CANARY}@127.0.0.1:port/x",
        "CDCWATCH_POSTGRES__PASSWORD": CANARY,
        "CDCWATCH_KAFKA__CLIENT": f'{{"sasl.password": "{CANARY}"',
        "CDCWATCH_KAFKA__CLIENT__SASL": f'{{"password": "{CANARY}"}}',
        "CDCWATCH_SWEEP__BATCH_ROWS": CANARY,
        "CDCWATCH_REDIS__URL": f"redis://:{CANARY}@x/0",
    }.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            said.append((name, cdcwatch("slot", "list", "--debug", "-c", path).said))
            said.append((name, cdcwatch("events", "--debug", "-c", path).said))
    assert [(what, text) for what, text in said if CANARY in text] == []
