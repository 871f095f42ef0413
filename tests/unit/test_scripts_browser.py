"""What brings the browser: it refuses what was not pinned, and says what to do where there is none."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from scripts.lib import browser
from scripts.lib.bootstrap import SetupError
from scripts.lib.browser import Chromium

SHOWS_PAGES = """#!/bin/sh
for last; do :; done
case "$last" in data:text/html,*) echo "<html>${last#data:text/html,}</html>";; esac
"""


def program(folder: Path, text: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "chromium"
    file.write_text(text)
    file.chmod(0o755)
    return str(file)


def package(name: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"axe"))
    return made.getvalue()


def test_a_browser_that_shows_nothing_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Chromium(program(tmp_path / "bin", "#!/bin/sh\necho no such library >&2\nexit 127\n"))
    monkeypatch.setattr(browser, "system_chromium", lambda: broken)
    with pytest.raises(SetupError, match=r"(?s)no such library.*apt-get install chromium"):
        browser.provide_chromium(tmp_path)
    assert browser.noted(tmp_path) is None


def test_a_browser_of_the_machine_is_noted_and_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Chromium(program(tmp_path / "bin", SHOWS_PAGES), {"A": "b"})
    monkeypatch.setattr(browser, "system_chromium", lambda: found)
    browser.provide_chromium(tmp_path)
    monkeypatch.setattr(browser, "system_chromium", lambda: pytest.fail("looked for again"))
    browser.provide_chromium(tmp_path)
    assert browser.noted(tmp_path) == found
    Path(found.program).unlink()
    assert browser.noted(tmp_path) is None


def test_without_root_it_is_unpacked_and_with_root_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Chromium(program(tmp_path / "bin", SHOWS_PAGES))
    installed: list[str] = []
    monkeypatch.setattr(browser, "system_chromium", lambda: ours if installed else None)
    monkeypatch.setattr(browser, "install_debs", installed.extend)
    monkeypatch.setattr(browser, "unpacked_chromium", lambda root: ours)
    for root, wanted in ((False, []), (True, ["chromium"])):
        monkeypatch.setattr(browser, "can_install_debs", lambda allowed=root: allowed)
        browser.note(tmp_path).unlink(missing_ok=True)
        browser.provide_chromium(tmp_path)
        assert installed == wanted
        assert json.loads(browser.note(tmp_path).read_text())["program"] == ours.program


def test_an_unpacked_browser_finds_its_libraries_and_fonts(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked" / "usr" / "lib" / "x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libnss3.so.1").touch()
    environment = browser.unpacked_environment(tmp_path)
    assert environment["LD_LIBRARY_PATH"] == str(folder)
    assert (
        f"<dir>{tmp_path}/unpacked/usr/share/fonts</dir>" in Path(environment["FONTCONFIG_FILE"]).read_text()
    )


def test_another_package_than_the_pinned_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(browser, "_downloaded", lambda url: package("package/axe.min.js"))
    with pytest.raises(SetupError, match="another hash"):
        browser.provide_axe(tmp_path)
    assert not browser.axe_file(tmp_path).exists()


def test_a_failure_ends_with_a_message(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def fail(root: Path) -> None:
        raise SetupError("the reason")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(browser, "provide_chromium", fail)
        assert browser.main(tmp_path) == 1
    assert "FAILED: the reason" in capsys.readouterr().err
