"""A headless Chromium whose visitor logs in as people do, and which keeps what no page of ours may cause.

with chromium() as browser, Visitor(browser, airflow.url) as visitor:
    visitor.log_in("viewer")
    visitor.open("/dpone/")
    visitor.assert_quiet()
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect, sync_playwright

from scripts.lib.browser import CHECKOUT, COMMAND, noted

SECONDS: Final = 60.0
"""How long a page may take that somebody else's load slows down."""

EXECUTED: Final = "executed_foreign_code"
"""What hostile text sets on the window if it is ever executed."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser. No name is resolved: whatever a page wants from another host fails."""
    found = noted(CHECKOUT)
    if found is None:
        pytest.fail(f"Chromium is not installed. Run: {COMMAND}")
    expect.set_options(timeout=1000 * SECONDS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=found.program,
            env={**os.environ, **found.environment},
            args=["--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"],
            timeout=1000 * SECONDS,
        )
        yield browser
        browser.close()


class Visitor:
    """Somebody with a browser window of their own.

    :ivar page: the window.
    :ivar asked: every address that was asked for.
    :ivar complaints: errors in the console and in scripts, and what failed to load, of our own pages.
    """

    def __init__(self, browser: Browser, url: str, *, width: int = 1600, height: int = 1000) -> None:
        self.url = url
        self.host = urlsplit(url).netloc
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self._context = browser.new_context(viewport={"width": width, "height": height})
        self._context.set_default_timeout(1000 * SECONDS)
        self._context.on("request", self._requested)
        self._context.on("requestfailed", self._failed)
        self._context.on("console", self._said)
        self._context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        self.page: Page = self._context.new_page()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.close()

    def begin(self) -> None:
        """Forget what happened so far, and close what is open."""
        self.page.goto("about:blank")
        self.asked.clear()
        self.complaints.clear()

    def log_in(self, user: str) -> None:
        """Go to Airflow, and fill in the form that comes: a password of the tests is the user's name."""
        self.page.goto(f"{self.url}/")
        self.page.get_by_label("Username").fill(user)
        self.page.get_by_label("Password").fill(user)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda address: "/auth/" not in address)

    def carry(self, token: str) -> None:
        """Carry this token, whatever it is, as the cookie of a login."""
        self._context.add_cookies([{"name": "_token", "value": token, "url": self.url}])

    def open(self, path: str) -> Response:
        """Load a page of the provider; returns the answer."""
        answer = self.page.goto(f"{self.url}{path}", wait_until="load")
        assert answer is not None
        return answer

    def shown(self) -> str:
        """The text of the page as it is read: nothing that is hidden, spaces as one."""
        return " ".join(self.page.locator("main").inner_text().split())

    def assert_quiet(self) -> None:
        """Nothing was asked from another host, nothing failed, and no foreign code ran."""
        elsewhere = [one for one in self.asked if urlsplit(one).netloc not in ("", self.host)]
        assert elsewhere == []
        assert self.complaints == []
        for frame in self.page.frames:
            assert frame.evaluate(f"window.{EXECUTED} === undefined")

    def _requested(self, request: Request) -> None:
        self.asked.append(request.url)

    def _failed(self, request: Request) -> None:
        # A page that is left while it loads gives up what it asked for.
        if self._ours(request.url) and "ERR_ABORTED" not in (request.failure or ""):
            self.complaints.append(f"{request.url}: {request.failure}")

    def _said(self, message: ConsoleMessage) -> None:
        # What is said of the frame that Airflow's own page puts around ours is not about ours.
        about_frame = "sandbox" in message.text
        if message.type in ("error", "warning") and self._ours(message.location["url"]) and not about_frame:
            self.complaints.append(f"{message.location['url']}: {message.text}")

    def _ours(self, url: str) -> bool:
        return urlsplit(url).path.startswith(f"{urlsplit(self.url).path}/dpone/")
