"""The site: built with warnings as errors, without a dead link, and whole without the network."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from scripts.lib import site

DOCS = site.CHECKOUT / "docs"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site.build(tmp_path_factory.mktemp("docs"))


def test_it_builds_without_a_warning_and_has_no_dead_link(built: Path) -> None:
    assert list(site.problems(built)) == []


def test_every_page_is_built(built: Path) -> None:
    pages = {page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")}
    missing = {
        page
        for page in pages
        if not (built / (page.parent if page.name == "index" else page) / "index.html").is_file()
    }
    assert missing == set()


def test_programs_are_no_pages(built: Path) -> None:
    assert [file for file in built.rglob("*.py") if file.is_file()] == []


def test_every_page_is_in_the_navigation_once() -> None:
    settings = yaml.safe_load((site.CHECKOUT / "mkdocs.yml").read_text())
    named = Counter(leaves(settings["nav"]))
    # The list of decisions is a page that has them all.
    wanted = {
        str(page.relative_to(DOCS))
        for page in DOCS.rglob("*.md")
        if not re.match(r"adr/\d", str(page.relative_to(DOCS)))
    }
    assert named == Counter(wanted)


def leaves(nav: Any) -> list[str]:
    """The pages of a navigation, however deep."""
    if isinstance(nav, str):
        return [nav]
    return [page for one in nav for value in one.values() for page in leaves(value)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("[a](nowhere.md)", "page does not exist"),
        ("[a](limits.md#nothing)", "anchor does not exist"),
    ],
)
def test_a_dead_link_between_pages_ends_the_build(
    wrong: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_checkout(tmp_path / "checkout", wrong, monkeypatch)
    with pytest.raises(site.SiteError, match=said):
        site.build(empty(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("[a](limits.txt)", "limits.txt leads nowhere"),
        ('<a href="limits/#nothing">a</a>', "has no such anchor"),
        ("![a](https://example.com/a.png)", "loads https://example.com/a.png"),
        ('<div class="mermaid">graph</div>', "a diagram that a script from elsewhere would draw"),
    ],
)
def test_what_the_generator_lets_pass_is_found(
    wrong: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_checkout(tmp_path / "checkout", wrong, monkeypatch)
    [found] = site.problems(site.build(empty(tmp_path)))
    assert said in found


def small_checkout(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pages with the real settings, but for the navigation."""
    settings = (site.CHECKOUT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (folder / "docs").mkdir(parents=True)
    (folder / "mkdocs.yml").write_text(settings)
    (folder / "docs" / "index.md").write_text("# Start\n")
    (folder / "docs" / "limits.md").write_text("# Limits\n")
    (folder / "docs" / "wrong.md").write_text(f"# Wrong\n\n{text}\n")
    monkeypatch.setattr(site, "CHECKOUT", folder)


def empty(folder: Path) -> Path:
    made = folder / "site"
    made.mkdir()
    return made


def test_there_is_a_script_for_hands() -> None:
    assert os.access(site.CHECKOUT / "scripts" / "docs", os.X_OK)
