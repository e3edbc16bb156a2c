"""What libpq's errors mean."""

from __future__ import annotations

import pytest

from cdcwatch.database import connect
from cdcwatch.errors import ConfigurationError


@pytest.mark.parametrize(
    "said",
    [
        "sslmode=verifyfull",
        "port=abc",
        "target_session_attrs=foo",
        "channel_binding=q",
        "keepalives_idle=z",
        "ssl_min_protocol_version=a",
    ],
)
def test_a_value_that_libpq_does_not_know_is_no_outage(said: str) -> None:
    with pytest.raises(ConfigurationError):
        connect(f"host=127.0.0.1 port=1 {said}", application_name="test")
