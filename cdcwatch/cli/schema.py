"""`cdcwatch schema`: the Avro schema of the events, printed or put into the registry."""

from typing import Annotated

import typer

from cdcwatch.cli.options import ConfigOption, DebugOption, settings_of
from cdcwatch.errors import ConfigurationError


def schema(
    context: typer.Context,
    register: Annotated[
        bool, typer.Option("--register", help="Put it into kafka.registry for each table's topic, and say its number.")
    ] = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Print the Avro schema of the events that this version writes with kafka.format = "avro"."""
    from cdcwatch.handoff.kafka.avro import schema_text

    if not register:
        print(schema_text(), end="")
        return
    from cdcwatch.handoff.kafka.registry import Registry, subject_of

    settings = settings_of(context, config)
    if not settings.kafka.registry.url:
        raise ConfigurationError("kafka.registry.url is empty", remedy='[kafka.registry] url = "https://…"')
    registry = Registry(settings.kafka.registry)
    for one in settings.each():
        topic = one.for_events().topic
        print(f"{subject_of(topic)}: number {registry.register(topic)}")
