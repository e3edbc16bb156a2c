"""A broker with ACLs: what its user `app` may do is granted and taken away by tests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from cdcwatch.local import LocalKafka
from cdcwatch.local.process import free_port
from tests.services import scratch_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWORD = "p@ss:w/r%d"
_LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_app="{}";'


class Guarded:
    """A broker on which the user app may do what it is granted; we are its super user over another listener."""

    def __init__(self, broker: LocalKafka, port: int) -> None:
        self.broker, self.port = broker, port
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})

    def grant(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        bindings = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, "User:app", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for done in self._admin.create_acls(bindings).values():
            done.result(20)

    def revoke(self, kind: ResourceType, name: str, operation: AclOperation) -> None:
        taken = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, "User:app", "*", operation, AclPermissionType.ALLOW
        )
        for done in self._admin.delete_acls([taken]).values():
            done.result(20)

    @property
    def client(self) -> str:
        """The lines of [kafka.client] for the user app."""
        return (
            '"security.protocol" = "SASL_PLAINTEXT"\n"sasl.mechanism" = "PLAIN"\n"sasl.username" = "app"\n'
            f'"sasl.password" = "{PASSWORD}"\n'
        )


@contextlib.contextmanager
def guarded_broker() -> Iterator[Guarded]:
    """Runs one."""
    port = free_port()
    with scratch_directory() as folder:
        broker = LocalKafka(folder / "kafka")
        properties = broker._properties
        for name in ("listeners", "advertised.listeners"):
            properties[name] += f",SASL://127.0.0.1:{port}"
        properties["listener.security.protocol.map"] += ",SASL:SASL_PLAINTEXT"
        properties |= {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": _LOGIN.format(PASSWORD),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        with broker:
            yield Guarded(broker, port)
