"""What every page must fulfil, whatever it shows: for everybody, in every window, in light and dark, without colour."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal

import pytest
from playwright.sync_api import Page

from scripts.lib.browser import CHECKOUT, COMMAND, axe_file
from tests.browser.reading import Place

WIDTHS: Final = (480, 1024, 1600)
HEIGHT: Final = 1000
SCHEMES: Final[Sequence[Literal["light", "dark"]]] = ("light", "dark")

_SHAPES: Final = """
() => [...document.querySelectorAll(".verdict, .badge, .mark")].map((one) => {
  const icon = one.querySelector("svg use");
  const symbol = icon && document.querySelector(icon.getAttribute("href"));
  const box = icon ? one.querySelector("svg").getBoundingClientRect() : {width: 0, height: 0};
  const seen = one.getBoundingClientRect();
  return {
    tone: one.closest(".hold, .care, .good, .rest").className.match(/hold|care|good|rest/)[0],
    shape: icon ? icon.getAttribute("href").slice(1) : "",
    drawn: symbol ? [...symbol.children].map((part) => part.outerHTML).join("") : "",
    word: one.innerText.trim(),
    seen: seen.width > 0 && seen.height > 0,
    size: Math.min(box.width, box.height),
  };
})
"""


@cache
def _axe() -> str:
    file = axe_file(CHECKOUT)
    if not file.exists():
        pytest.fail(f"axe-core is not there. Run: {COMMAND}")
    return file.read_text()


def findings(place: Place) -> list[str]:
    """What axe finds, in a line each; all of its rules are asked."""
    if not place.evaluate("typeof axe === 'object'"):
        place.evaluate(_axe())
    found: Mapping[str, Any] = place.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {json.dumps([n['html'][:200] for n in one['nodes']])}"
        for one in found["violations"]
    ]


def judge(page: Page) -> int:
    """Judge the page that a window shows; returns how many findings were possible: axe's runs.

    The window has its width and its colours back afterwards.
    """
    before = page.viewport_size
    runs = 0
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": HEIGHT})
            assert overflow(page) <= 0, f"{width} px, {scheme}: {overflow(page)} px too wide"
            assert findings(page) == [], f"{width} px, {scheme}"
            runs += 1
    page.emulate_media(color_scheme="light")
    if before is not None:
        page.set_viewport_size(before)
    assert_readable_without_colour(page)
    page.emulate_media(forced_colors="active")
    assert_readable_without_colour(page)
    page.emulate_media(forced_colors="none")
    return runs


def judge_once(page: Page) -> None:
    """Judge a page in one width, for tests that have little time."""
    assert overflow(page) <= 0
    assert findings(page) == []
    assert_readable_without_colour(page)


def overflow(place: Place) -> int:
    """By how many pixels the page is wider than its window."""
    found: int = place.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return found


def assert_readable_without_colour(place: Place) -> None:
    """Every state has a word and a shape, and no two tones share one."""
    found: Sequence[Mapping[str, Any]] = place.evaluate(_SHAPES)
    drawn: dict[str, str] = {}
    for one in found:
        assert one["shape"] == one["tone"], one
        assert one["word"], one
        if one["seen"]:
            assert one["size"] >= 10, one
        assert drawn.setdefault(one["shape"], one["drawn"]) == one["drawn"] != "", one
    assert len(set(drawn.values())) == len(drawn)
