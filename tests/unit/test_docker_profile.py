"""The Docker profile as far as no engine is needed: what it mounts, pins and sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

FOLDER: Final = Path(__file__).resolve().parents[2] / "docker"
SERVERS: Final = ("clickhouse1", "clickhouse2")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


def fragments() -> list[Path]:
    return sorted((FOLDER / "clickhouse").rglob("*.xml"))


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_reads_the_very_files_of_the_local_cluster(services: dict[str, Any], server: str) -> None:
    mounted = {}
    for volume in services[server]["volumes"]:
        source, target, mode = volume.split(":")
        assert mode == "ro"
        mounted[(FOLDER / source).resolve()] = target
    assert sorted(mounted) == fragments()
    for source, target in mounted.items():
        folder = source.parent.name
        # A name of its own: none of the image's files is covered.
        assert re.fullmatch(rf"/etc/clickhouse-server/{folder}/dpone_\w+\.xml", target)


@pytest.mark.parametrize("server", SERVERS)
def test_every_value_that_the_files_take_from_the_environment_is_set(
    services: dict[str, Any], server: str
) -> None:
    wanted = {name for file in fragments() for name in re.findall(r'from_env="(\w+)"', file.read_text())}
    assert wanted <= set(services[server]["environment"])


def test_the_servers_differ_in_what_must_differ(services: dict[str, Any]) -> None:
    first, second = (services[server]["environment"] for server in SERVERS)
    assert {name for name in first if first[name] != second[name]} == {"DPONE_DISPLAY_NAME", "DPONE_REPLICA"}
    assert [first[f"DPONE_REPLICA{number}_HOST"] for number in (1, 2)] == list(SERVERS)
    assert first["DPONE_KEEPER_PORT"] in (FOLDER / "keeper" / "keeper_config.xml").read_text()


def test_versions_are_pinned_and_nothing_listens_beyond_this_machine(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert re.search(r":\d+(\.\d+)*$", service["image"]), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
    versions = {
        service["image"].partition(":")[2]
        for service in services.values()
        if "clickhouse" in service["image"]
    }
    assert versions == {"24.8.14.39"}
