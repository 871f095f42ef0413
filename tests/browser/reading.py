"""A receipt as somebody reads it who looks at the window: what is hidden there is not read here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from playwright.sync_api import Frame, Locator, Page

Place: TypeAlias = Page | Frame


def words(place: Locator) -> str:
    """What is shown there, with spaces as one."""
    return " ".join(place.inner_text().split())


class ReceiptPage:
    """One receipt, in a window or in a frame of one.

    :ivar place: where it is shown.
    """

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def text(self) -> str:
        """All of it."""
        return words(self.place.locator("main"))

    @property
    def verdict(self) -> str:
        """The word at its top."""
        return words(self.place.locator(".verdict"))

    @property
    def headline(self) -> str:
        """Verdict, table, cluster, phase and operation."""
        return words(self.place.locator("header .line"))

    @property
    def what(self) -> str:
        """What happened."""
        return self._answer("What happened")

    @property
    def safe(self) -> str:
        """Whether it is safe."""
        return self._answer("Is it safe")

    @property
    def next(self) -> str:
        """What next."""
        return self._answer("What next")

    @property
    def facts(self) -> str:
        """Whether the facts are live."""
        return words(self.place.locator(".facts"))

    @property
    def never(self) -> set[str]:
        """What must never be done; empty where the page has no such part."""
        found = self.place.get_by_role("region", name="Never").get_by_role("listitem")
        return {words(one) for one in found.all()}

    @property
    def commands(self) -> list[str]:
        """The commands, as they would be copied."""
        found = self.place.get_by_role("region", name="Commands").locator("pre")
        return [words(one) for one in found.all()]

    @property
    def replicas(self) -> Mapping[str, Mapping[str, str]]:
        """Replica -> column -> what stands there, read in a window that is wide enough for columns."""
        table = self.place.get_by_role("region", name="Replicas").get_by_role("table")
        if not table.count():
            return {}
        columns = [words(one) for one in table.get_by_role("columnheader").all()]
        found: dict[str, dict[str, str]] = {}
        for row in table.locator("tbody").get_by_role("row").all():
            alias = words(row.get_by_role("rowheader").locator("b"))
            cells = [words(one) for one in row.get_by_role("cell").all()]
            found[alias] = dict(zip(columns[1:], cells, strict=True))
        return found

    @property
    def steps(self) -> Mapping[str, str]:
        """Phase -> what is said of it to whoever can't see its shape."""
        found = self.place.get_by_role("region", name="Phases").get_by_role("listitem")
        return {
            words(one.locator(".name")): (one.locator(".hidden").text_content() or "").strip()
            for one in found.all()
        }

    def open_evidence(self) -> None:
        """Unfold every entry of the evidence."""
        self.place.locator("#entries summary").click()

    def _answer(self, question: str) -> str:
        found = self.place.locator("dl.answers > div").filter(
            has=self.place.get_by_text(question, exact=True)
        )
        return words(found.locator("dd"))
