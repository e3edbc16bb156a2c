"""docker/: what can be looked at without an engine or a cluster. docs/deploy.md says what was run and what wasn't."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdcwatch import __version__
from cdcwatch.configuration import load_settings
from cdcwatch.pipeline.service import STOP_TIMEOUT_S
from tests.command import require_parsable

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = [DOCKER / "Dockerfile", DOCKER / "postgres.Dockerfile"]
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MANIFESTS = sorted((DOCKER / "kubernetes").glob("*.yaml"))
PATHS = {"/metrics", "/healthz", "/readyz"}
LONGEST_STOP_S = 45
"""As docs/runbook.md has it."""


def _tool(name: str) -> str:
    """A tool that came with the extra `test`."""
    path = Path(sys.executable).with_name(name)
    assert path.exists(), f"{name} is missing: pip install -e '.[test]'"
    return str(path)


def _passes(*command: str | Path) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _documents() -> list[tuple[str, dict[str, Any]]]:
    return [(path.name, one) for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]


def _of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for _, one in _documents() if one["kind"] == kind]


# -- images ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_is_sound(path: Path) -> None:
    _passes(_tool("hadolint"), "--failure-threshold", "info", path)
    text = path.read_text()
    instructions = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    assert not [rest for name, rest in instructions if name == "ADD" or ":latest" in rest]
    images = [rest for name, rest in instructions if name == "ARG" and "_IMAGE=" in rest]
    assert images, "the base image is an argument, so that it can be pinned"
    assert all(rest.split(" AS ")[0].startswith("${") for name, rest in instructions if name == "FROM")
    users = [rest for name, rest in instructions if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]), "by number, and not root"
    assert any(name == "HEALTHCHECK" for name, _ in instructions)
    for sources in (rest.split()[:-1] for name, rest in instructions if name == "COPY" and "--from" not in rest):
        for source in sources:
            assert (ROOT / source).exists(), source
    for installs in re.findall(r"apt-get install.*?(?=\n[A-Z#])", text, re.DOTALL):
        assert "--no-install-recommends" in installs
        assert "rm -rf /var/lib/apt/lists" in installs


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_build_sees_what_it_copies_and_nothing_else(path: Path) -> None:
    let_in = [line[1:] for line in Path(f"{path}.dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", path.read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert {source for source in copied if not any(Path(source).is_relative_to(one) for one in let_in)} == set()


def test_the_image_runs_cdcwatch_and_asks_it_how_it_is() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    assert f"ARG VERSION={__version__}\n" in text
    assert f"-t cdcwatch:{__version__} ." in text
    check = json.loads(re.search(r"HEALTHCHECK.*?CMD (\[.*?\])", text, re.DOTALL)[1])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "healthcheck", "exec")
    assert "127.0.0.1:9464/healthz" in check[2]
    entry, arguments = (
        json.loads(re.search(rf"^{name} (\[.*\])$", text, re.MULTILINE)[1]) for name in ("ENTRYPOINT", "CMD")
    )
    assert entry == ["cdcwatch"]
    require_parsable(*arguments)
    assert "sbom.cdx.json" in text


# -- compose ---------------------------------------------------------------------------------------------------------


def test_compose_keeps_the_schema() -> None:
    _passes(_tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_watched_and_on_the_loopback(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r":v?\d[\w.]*$", service["image"]), "a version, not latest"
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:"), port
    assert "test" in service["healthcheck"] or service["healthcheck"] == {"disable": True}
    assert "restart" in service
    for other, how in service.get("depends_on", {}).items():
        condition = how["condition"]
        assert condition in {"service_healthy", "service_started", "service_completed_successfully"}
        if condition == "service_healthy":
            assert "test" in SERVICES[other]["healthcheck"]
        if condition == "service_completed_successfully":
            assert SERVICES[other]["restart"] == "no"
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert (DOCKER / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    if "build" in service:
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_compose_runs_cdcwatch_with_a_configuration_that_it_reads() -> None:
    for name in ("slot", "cdcwatch"):
        require_parsable(*SERVICES[name]["command"])
        assert SERVICES[name]["image"] == f"cdcwatch:{__version__}"
    settings = load_settings(DOCKER / "cdcwatch.toml", {})
    assert "host=postgres " in settings.postgres.dsn
    assert settings.kafka.bootstrap_servers == "kafka:9092"
    assert settings.telemetry.listen.endswith(":9464")
    assert SERVICES["cdcwatch"]["ports"] == ["127.0.0.1:9464:9464"]
    assert int(SERVICES["cdcwatch"]["stop_grace_period"].removesuffix("s")) > LONGEST_STOP_S > STOP_TIMEOUT_S
    scraped = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert (job["job_name"], job["static_configs"]) == ("cdcwatch", [{"targets": ["cdcwatch:9464"]}])
    assert [(DOCKER / "prometheus" / file).exists() for file in scraped["rule_files"]] == [True]


def test_every_password_is_asked_for_and_none_has_a_default() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    variables = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    assert variables
    assert all(rest.startswith(":?") for _, rest in variables)
    named = {line.rstrip("=") for line in (DOCKER / "env.example").read_text().splitlines() if not line.startswith("#")}
    assert named == {name for name, _ in variables}


# -- systemd ---------------------------------------------------------------------------------------------------------


def test_the_unit_starts_it_stops_it_in_time_and_narrows_it() -> None:
    text = (DOCKER / "systemd/cdcwatch.service").read_text()
    keys = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    program, *arguments = shlex.split(keys["ExecStart"])
    assert program.endswith("/cdcwatch")
    require_parsable(*arguments)
    assert int(keys["TimeoutStopSec"]) >= 60 > LONGEST_STOP_S
    assert keys["KillSignal"] == "SIGTERM"
    assert keys["RestartPreventExitStatus"] == "2"
    assert int(keys["RestartSec"]) >= 30  # it also tries again what only somebody can mend
    assert (keys["DynamicUser"], keys["ProtectSystem"], keys["NoNewPrivileges"]) == ("yes", "strict", "yes")


def test_systemd_knows_every_line_of_the_unit(tmp_path: Path) -> None:
    text = (DOCKER / "systemd/cdcwatch.service").read_text()
    (program,) = re.findall(r"^ExecStart=(\S+)", text, re.MULTILINE)
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        assert "CI" not in os.environ, "systemd-analyze is missing: apt-get install systemd"
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    unit = tmp_path / "cdcwatch.service"
    unit.write_text(text.replace(program, "/bin/true"))
    ended = subprocess.run([verifier, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    # Of other units on this machine it may complain too.
    assert [line for line in ended.stderr.splitlines() if "cdcwatch.service" in line] == []


# -- kubernetes ------------------------------------------------------------------------------------------------------


def test_the_manifests_keep_the_schema() -> None:
    _passes(_tool("kubernetes-validate"), "--strict", "--quiet", "--no-warn", *MANIFESTS)
    listed = yaml.safe_load((DOCKER / "kubernetes/kustomization.yaml").read_text())["resources"]
    assert [name for name in listed if not (DOCKER / "kubernetes" / name).exists()] == []


@pytest.mark.parametrize(
    "workload", [*_of_kind("Deployment"), *_of_kind("Job")], ids=lambda one: one["metadata"]["name"]
)
def test_a_workload_is_not_root_stops_in_time_and_reads_what_is_there(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"cdcwatch:{__version__}"
    require_parsable(*container["args"])
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not pod["enableServiceLinks"]
    secrets = {key for one in _of_kind("Secret") for key in one["stringData"]}
    for variable in container["env"]:
        assert variable["valueFrom"]["secretKeyRef"]["key"] in secrets
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert {item["key"] for item in volumes["tls"]["secret"]["items"]} <= secrets
    if workload["kind"] == "Job":
        return
    assert pod["terminationGracePeriodSeconds"] >= 60 > LONGEST_STOP_S
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in PATHS
        assert asked["port"] in {port["name"] for port in container["ports"]}
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    # A standby is alive and not ready: see the comment there.
    ready = "/healthz" if container["args"] == ["run"] else "/readyz"
    assert container["readinessProbe"]["httpGet"]["path"] == ready
    assert any(budget["spec"]["selector"]["matchLabels"] == labels for budget in _of_kind("PodDisruptionBudget"))


def test_the_manifests_configuration_is_one(tmp_path: Path) -> None:
    (config,) = _of_kind("ConfigMap")
    file = tmp_path / "cdcwatch.toml"
    file.write_text(config["data"]["cdcwatch.toml"])
    (secret,) = _of_kind("Secret")
    settings = load_settings(file, {"CDCWATCH_KAFKA__CLIENT": secret["stringData"]["kafka-client.json"]})
    assert settings.kafka.client["security.protocol"] == "SASL_SSL"
    assert settings.telemetry.listen == "0.0.0.0:9464"


# -- and the checks before a commit ----------------------------------------------------------------------------------


def test_the_hooks_before_a_commit_are_make_checks_tools() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    entries = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks[0]["hooks"]}
    checks = set(
        re.findall(
            r"\$\(BIN\)/(\S+)",
            re.search(r"^check:.*?\n\n", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)[0],
        )
    )
    assert checks == entries - {"bash"}
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"] == {
        "cdcwatch": "cdcwatch.cli.main:main"
    }
