"""Builds the site of these docs, and checks what was built as a reader's browser would see it.

The generator checks links between pages and their anchors. It takes no notice of links to other files, and says
nothing of what a page loads from elsewhere while it is read; `problems` does both, on the HTML.

The build runs in a folder of its own: the generator empties ``.cache`` beside its configuration, which in the
checkout has other things in it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

CHECKOUT: Final = Path(__file__).resolve().parents[2]
ZENSICAL: Final = Path(sys.executable).with_name("zensical")
_LOADED: Final = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src"}
_LOADED_RELATIONS: Final = frozenset({"stylesheet", "icon", "preload", "prefetch", "modulepreload"})


class SiteError(RuntimeError):
    """The build failed, or what it built has dead links; the text says where."""


def build(folder: Path) -> Path:
    """Build the site in an empty folder, with warnings as errors. Returns the folder of the site.

    Raises:
        SiteError: the generator warned or failed; the text is what it printed.
    """
    shutil.copyfile(CHECKOUT / "mkdocs.yml", folder / "mkdocs.yml")
    # Programs, and what they are fed with, are no pages.
    shutil.copytree(
        CHECKOUT / "docs",
        folder / "docs",
        ignore=shutil.ignore_patterns(
            "*.py", "__pycache__", "examples", "browser.json", "matrix.json", "proof.json"
        ),
    )
    done = subprocess.run(
        [ZENSICAL, "build", "--strict"],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": ""},
    )
    if done.returncode or "No issues found" not in done.stdout + done.stderr:
        raise SiteError(re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr.partition("Traceback")[0]))
    return folder / "site"


class _Page(HTMLParser):
    """What one page has: its anchors, its links, and what a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.diagrams = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and _LOADED_RELATIONS & set(found.get("rel", "").split()):
            self.loaded.append(found["href"])
        if tag in _LOADED and _LOADED[tag] in found:
            self.loaded.append(found[_LOADED[tag]])
        self.diagrams += "mermaid" in found.get("class", "").split()


def problems(site: Path) -> Iterator[str]:
    """Yield every dead link and every thing that comes from elsewhere, with the page that has it."""

    @cache
    def page(file: Path) -> _Page:
        return _Page(file.read_text())

    for file in sorted(site.rglob("*.html")):
        if file.name == "404.html":
            continue  # it is shown under any address, so its links are the server's business
        where = file.relative_to(site)
        if page(file).diagrams:
            yield f"{where}: a diagram that a script from elsewhere would draw"
        for link in (*page(file).links, *page(file).loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page(file).loaded and parts.scheme != "data":
                    yield f"{where}: loads {link}"
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target /= "index.html"
            if not target.is_relative_to(site.resolve()) or not target.is_file():
                yield f"{where}: {link} leads nowhere"
            elif (
                target.suffix == ".html"
                and parts.fragment
                and unquote(parts.fragment) not in page(target).anchors
            ):
                yield f"{where}: {link} has no such anchor"


def main() -> int:
    """Build into ``build/docs`` and print what is wrong. Returns the exit status."""
    folder = CHECKOUT / "build" / "docs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        site = build(folder)
    except SiteError as error:
        print(error)
        return 1
    found = list(problems(site))
    print(
        "\n".join(found) or f"The site is in {site.relative_to(CHECKOUT)}, without a warning or a dead link."
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
