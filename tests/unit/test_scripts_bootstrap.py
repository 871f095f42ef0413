"""The installer: what it hands to other programs, and that it does nothing when nothing is to be done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lib import bootstrap
from scripts.lib.bootstrap import SetupError, ZooKeeper, pin, provide_zookeeper, run, uv_environment

CHECKOUT = Path(__file__).resolve().parents[2]


def test_pip_settings_reach_uv() -> None:
    settings = "\n".join(
        [
            ":env:.default-timeout='180'",
            "global.cert='/etc/ssl/own.crt'",
            "global.extra-index-url='file:///a file:///b'",
            "global.find-links='/wheels /more'",
            "global.index-url='https://index.example/simple'",
            "global.constraint='/etc/constraints.txt'",
        ]
    )
    assert uv_environment(settings, {"PATH": "/bin"}) == {
        "PATH": "/bin",
        "SSL_CERT_FILE": "/etc/ssl/own.crt",
        "UV_CONSTRAINT": "/etc/constraints.txt",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_HTTP_TIMEOUT": "180",
        "UV_INDEX": "file:///a file:///b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_NO_PROGRESS": "1",
    }


def test_settings_for_uv_itself_win() -> None:
    own = {"UV_DEFAULT_INDEX": "https://other.example/simple", "SSL_CERT_FILE": "/other.crt"}
    settings = "global.index-url='https://index.example/simple'\nglobal.cert='/own.crt'"
    assert own.items() <= uv_environment(settings, own).items()


def test_later_pip_settings_win() -> None:
    settings = "global.index-url='https://one.example'\nuser.index-url='https://two.example'"
    assert uv_environment(settings, {})["UV_DEFAULT_INDEX"] == "https://two.example"


def test_pin() -> None:
    lock = "uvicorn==1\nuv==0.13.9\nuvloop==2 ; sys_platform != 'win32'\n"
    assert pin(lock, "uv") == "uv==0.13.9"
    with pytest.raises(SetupError, match="pip"):
        pin(lock, "pip")


def test_lock_is_exact_and_names_no_host() -> None:
    lines = (CHECKOUT / "requirements" / "dev.txt").read_text().splitlines()
    assert len(lines) > 100
    assert [line for line in lines if "==" not in line.partition(";")[0]] == []
    assert [line for line in lines if "://" in line or line.startswith("-")] == []


def test_failed_command_says_which_and_why() -> None:
    with pytest.raises(SetupError, match=r"(?s)status 3:\n.*the reason"):
        run([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"])
    with pytest.raises(SetupError, match="cannot run no-such-program"):
        run(["no-such-program"])


def test_zookeeper_that_does_not_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ZooKeeper(java=sys.executable, classpath=str(tmp_path / "zookeeper.jar"))
    monkeypatch.setattr(bootstrap, "system_zookeeper", lambda: broken)
    with pytest.raises(SetupError, match="ZooKeeper does not start"):
        provide_zookeeper(tmp_path)
    assert not (tmp_path / ".cache" / "zookeeper.json").exists()


def test_note_about_zookeeper_is_renewed_when_its_files_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    this_machines = ZooKeeper(**json.loads((CHECKOUT / ".cache" / "zookeeper.json").read_text()))
    monkeypatch.setattr(bootstrap, "system_zookeeper", lambda: this_machines)
    note = tmp_path / ".cache" / "zookeeper.json"
    note.parent.mkdir()
    note.write_text(json.dumps({"java": str(tmp_path / "gone"), "classpath": str(tmp_path / "gone.jar")}))
    provide_zookeeper(tmp_path)
    assert ZooKeeper(**json.loads(note.read_text())) == this_machines
    assert this_machines.works()


def test_second_setup_has_nothing_to_do() -> None:
    subprocess.run([CHECKOUT / "scripts" / "setup"], check=True, capture_output=True)
    again = subprocess.run([CHECKOUT / "scripts" / "setup"], capture_output=True, text=True, timeout=10)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_setup_without_a_usable_python_says_so(tmp_path: Path) -> None:
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    setup = CHECKOUT / "scripts" / "setup"
    done = subprocess.run([setup], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no Python between 3.11 and 3.14" in done.stderr


def test_the_newest_postgresql_is_found_by_its_number(tmp_path: Path) -> None:
    assert bootstrap.newest_postgres(tmp_path) is None
    for version in ("9", "15", "16"):
        (tmp_path / version / "bin").mkdir(parents=True)
    for version in ("9", "15"):
        (tmp_path / version / "bin" / "postgres").touch()
    assert bootstrap.newest_postgres(tmp_path) == tmp_path / "15" / "bin"


def test_a_postgresql_that_is_known_is_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / "postgres").touch()
    note = tmp_path / ".cache" / "postgres.json"
    note.write_text(json.dumps({"programs": str(tmp_path), "libraries": ""}))
    monkeypatch.setattr(bootstrap, "SYSTEM_POSTGRES", tmp_path / "none")
    monkeypatch.setattr(bootstrap, "unpacked_postgres", lambda root: pytest.fail("looked for again"))
    bootstrap.provide_postgres(tmp_path)


def test_a_postgresql_that_does_not_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "15" / "bin"
    programs.mkdir(parents=True)
    (programs / "postgres").write_text("no program")
    monkeypatch.setattr(bootstrap, "SYSTEM_POSTGRES", tmp_path)
    with pytest.raises(SetupError, match="does not start"):
        bootstrap.provide_postgres(tmp_path)
