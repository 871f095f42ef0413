"""Brings the browser that looks at the provider's page: Chromium from Debian, and axe-core, which judges what it shows.

    python -m scripts.lib.browser

What is there already is left alone: then neither network nor root is needed. It is apart from ``scripts/setup``, since
the demo and the benchmarks do without a browser.

Results:
    ``.cache/chromium.json``  ``{"program": <file>, "environment": {...}}``, to start Chromium with
    ``.cache/axe-<version>.js``  the library, as its package on npm has it
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from scripts.lib.bootstrap import (
    SetupError,
    can_install_debs,
    install_debs,
    library_path,
    only_one,
    require_apt,
    run,
    say,
    timed,
    unpacked_with_libraries,
)

CHECKOUT: Final = Path(__file__).resolve().parents[2]
COMMAND: Final = "python -m scripts.lib.browser"
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
"""By what names a browser is looked for that the machine has already."""

AXE: Final = "4.14.1"
AXE_SHA512: Final = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
_AXE_URL: Final = f"https://registry.npmjs.org/axe-core/-/axe-core-{AXE}.tgz"
_AXE_FILE: Final = "package/axe.min.js"
_PROBE: Final = "shown by the browser"


@dataclass(frozen=True)
class Chromium:
    """How to start a Chromium: its program, and what it needs in its environment."""

    program: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def why_not(self) -> str:
        """Why it shows no page on this machine; empty if it does."""
        with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
            options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
            command = [self.program, *options, "--dump-dom", f"data:text/html,<p>{_PROBE}</p>"]
            try:
                probe = subprocess.run(
                    command,
                    env={**os.environ, **self.environment},
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
        if _PROBE in probe.stdout:
            return ""
        return "\n".join(probe.stderr.splitlines()[-5:]) or f"it ended with status {probe.returncode}"


def note(root: Path) -> Path:
    """The file that says how to start Chromium."""
    return root / ".cache" / "chromium.json"


def axe_file(root: Path) -> Path:
    """Where axe-core is kept."""
    return root / ".cache" / f"axe-{AXE}.js"


def noted(root: Path) -> Chromium | None:
    """The Chromium that was found or brought before, if it is still there."""
    if not note(root).exists():
        return None
    known = Chromium(**json.loads(note(root).read_text()))
    return known if Path(known.program).exists() else None


def system_chromium() -> Chromium | None:
    """A browser of the machine's own."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    return Chromium(found) if found else None


def unpacked_chromium(root: Path) -> Chromium:
    """A Chromium under ``.cache``, made without root: Debian's package, with every library that is missing here.

    Raises:
        SetupError: this machine cannot download Debian packages either.
    """
    require_apt("Chromium", f"a browser that is called {' or '.join(PROGRAMS)}")
    home = root / ".cache" / "chromium"
    with timed("unpacking Chromium into .cache/chromium (as root, Debian packages would be installed)"):
        unpacked = unpacked_with_libraries(home, "chromium")
    # The program in bin is a script that looks for the other one in the system's folders.
    program = unpacked / "usr" / "lib" / "chromium" / "chromium"
    if not program.exists():
        raise SetupError("the Debian packages of chromium hold no browser")
    return Chromium(str(program), unpacked_environment(home))


def unpacked_environment(home: Path) -> Mapping[str, str]:
    """What a browser needs whose packages were unpacked: its libraries, and fonts in no place of the system's."""
    unpacked = home / "unpacked"
    fonts = home / "fonts.conf"
    fonts.write_text(
        '<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "fonts.dtd">\n<fontconfig>\n'
        f"<dir>{unpacked}/usr/share/fonts</dir>\n<dir>/usr/share/fonts</dir>\n"
        f"<cachedir>{home}/fonts</cachedir>\n</fontconfig>\n"
    )
    return {"LD_LIBRARY_PATH": library_path(unpacked), "FONTCONFIG_FILE": str(fonts)}


def provide_chromium(root: Path) -> None:
    """Find, install or unpack a Chromium that shows pages, and write down how it is started.

    Raises:
        SetupError: there is none, or the one that is there does not run.
    """
    if noted(root) is not None:
        return
    if system_chromium() is None and can_install_debs():
        install_debs(["chromium"])
    chromium = system_chromium() or unpacked_chromium(root)
    if why_not := chromium.why_not():
        raise SetupError(
            f"{chromium.program} shows no page: {why_not}\n"
            "Install Chromium by other means (as root: apt-get install chromium), and run this again."
        )
    note(root).parent.mkdir(exist_ok=True)
    note(root).write_text(json.dumps(asdict(chromium)) + "\n")


def provide_axe(root: Path) -> None:
    """Download axe-core, unless it is there.

    Raises:
        SetupError: it can't be downloaded, or is not what was pinned.
    """
    kept = axe_file(root)
    if kept.exists():
        return
    with timed(f"downloading axe-core {AXE}"):
        package = _packed_by_npm() if shutil.which("npm") else _downloaded(_AXE_URL)
    library = axe_of(package)
    kept.parent.mkdir(exist_ok=True)
    fresh = kept.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(library)
    fresh.replace(kept)


def axe_of(package: bytes) -> bytes:
    """The library in its package.

    Raises:
        SetupError: the package is not the one that was pinned.
    """
    found = base64.b64encode(hashlib.sha512(package).digest()).decode()
    if found != AXE_SHA512:
        raise SetupError(f"the package of axe-core {AXE} has another hash than the pinned one: {found}")
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        file = archive.extractfile(_AXE_FILE)
        if file is None:
            raise SetupError(f"the package of axe-core has no {_AXE_FILE}")
        return file.read()


def _packed_by_npm() -> bytes:
    """As npm downloads it: by the user's own settings of the registry."""
    with tempfile.TemporaryDirectory(prefix="axe-") as folder:
        run(["npm", "pack", "--silent", "--pack-destination", folder, f"axe-core@{AXE}"], cwd=Path(folder))
        return next(Path(folder).glob("*.tgz")).read_bytes()


def _downloaded(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            content: bytes = answer.read()
    except OSError as error:
        raise SetupError(
            f"axe-core can't be downloaded from {url}: {error}. Where another registry is used, install npm, "
            "whose settings are obeyed."
        ) from error
    return content


def main(root: Path = CHECKOUT) -> int:
    """Do what is not done yet. Returns the process's exit status."""
    try:
        with only_one(root):
            provide_chromium(root)
            provide_axe(root)
    except SetupError as error:
        say(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
