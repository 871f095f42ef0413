"""The documentation says what the code does: generated parts, links, examples, commands, fields."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import jsonschema
import pytest
import yaml  # type: ignore[import-untyped]
from airflow.sdk import DAG

import airflow_provider_dpone
from airflow_provider_dpone.cli.definition import commands
from airflow_provider_dpone.publication import receipt, record
from airflow_provider_dpone.publication.record import Phase
from airflow_provider_dpone.publication.stop import Code
from airflow_provider_dpone.publication.trail import Proven

CHECKOUT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = CHECKOUT / "docs"
PAGES: Final = (CHECKOUT / "README.md", CHECKOUT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md")))
DECISIONS: Final = sorted((DOCS / "adr").glob("[0-9]*.md"))
EXAMPLES: Final = (
    *sorted((DOCS / "examples").glob("*.py")),
    *sorted((CHECKOUT / "example_dags").glob("*.py")),
)
# It is about test equipment, whose names are not the product's.
ABOUT_TESTS: Final = DOCS / "test-cluster.md"
# A test follows it to the letter: tests/airflow/test_tutorial.py.
TUTORIAL: Final = DOCS / "tutorial.md"
ANY_PAGE: Final = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))


@cache
def generate() -> ModuleType:
    """The program that writes the generated parts. It lies with the pages and is no part of a package."""
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(text: str, language: str) -> Iterator[str]:
    """The fenced blocks of a language."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield found[1]


# ---- what is generated


@ANY_PAGE
def test_generated_parts_and_examples_are_what_the_code_says(page: Path) -> None:
    text = page.read_text()
    assert generate().generated(text) == text, "run: python docs/generate.py"


def test_every_generated_part_is_on_a_page_once() -> None:
    found = [part for page in PAGES for part in generate().parts(page.read_text())]
    assert sorted(found) == sorted(generate().GENERATORS)


def test_a_page_that_is_behind_is_noticed() -> None:
    text = "<!-- generated: bounds -->\n\n| old |\n\n<!-- end of bounds -->"
    assert "65,536 bytes" in generate().generated(text)
    example = "<!-- example: example_dags/first_refresh.py -->\n```python\nold\n```"
    assert "ClusterRefresh(" in generate().generated(example)
    with pytest.raises(ValueError, match="no part nothing"):
        generate().generated("<!-- example: example_dags/first_refresh.py nothing -->\n```python\n```")


def test_the_page_of_codes_has_every_code() -> None:
    page = (DOCS / "reference" / "codes.md").read_text()
    assert re.findall(r"^\| `(DPONE_\w+)` \|", page, re.MULTILINE).count(Code.IN_PROGRESS) == 1
    assert set(re.findall(r"^\| `(DPONE_\w+)` \|", page, re.MULTILINE)) == {code.value for code in Code}


# ---- names of the code in the text


@pytest.mark.parametrize("page", [p for p in PAGES if p != ABOUT_TESTS], ids=lambda page: page.stem)
def test_codes_and_phases_that_are_named_exist(page: Path) -> None:
    known = {code.name for code in Code} | {
        code.value.removeprefix("DPONE_CLICKHOUSE_CLUSTER_") for code in Code
    }
    known |= {code.value for code in Code} | {phase.value for phase in Phase} | set(Proven)
    named = set(re.findall(r"`([A-Z]+_[A-Z_]+|[A-Z]{6,})`", page.read_text()))
    assert named - known - OTHER_CAPITALS == set()


OTHER_CAPITALS: Final = {
    # Statements, privileges, types and engine words of databases; configuration and categories.
    "AIRFLOW_HOME",
    "DPONE_AIRFLOW",
    "DPONE_POSTGRES",
    "CLUSTER",
    "COMMENT",
    "DEFAULT",
    "DELETE",
    "EXCHANGE",
    "INSERT",
    "NOT_OBSERVED",
    "NUMBER",
    "CONTRADICTION",
    "RENAME",
    "REMOTE",
    "SELECT",
    "UPDATE",
    "CREATE",
    "PROJECTION",
    "CONSTRAINT",
    "OVERWRITE",
    "WARNING",
    "MATERIALIZED",
    # Statements and types of the databases that are read.
    "TIMESTAMP",
}


@pytest.mark.parametrize(
    "owner",
    [
        record.AuthorityRecord,
        record.IndependentRecord,
        receipt.StageReceipt,
        receipt.PublicationReceipt,
        receipt.IndependentReceipt,
        receipt.ReplicaReceipt,
        receipt.SettledReceipt,
    ],
    ids=lambda owner: owner.__name__,
)
def test_every_field_of_record_and_receipts_is_explained(owner: Any) -> None:
    page = (DOCS / "reference" / "record-and-receipt.md").read_text()
    part = re.search(rf"<!-- fields: {owner.__name__} -->\n(.*?)<!-- end of fields -->", page, re.DOTALL)
    assert part is not None
    explained = [
        name
        for row in re.findall(r"^\| (`.*?) \|", part[1], re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    inherited = {
        field.name
        for base in owner.__bases__
        if dataclasses.is_dataclass(base)
        for field in dataclasses.fields(base)
    }
    assert sorted(explained) == sorted({field.name for field in dataclasses.fields(owner)} - inherited)


def test_the_phases_are_those_of_the_record() -> None:
    page = (DOCS / "reference" / "record-and-receipt.md").read_text()
    assert re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE) == [phase.value for phase in Phase]


def test_the_keys_of_a_connection_are_those_of_the_form() -> None:
    from airflow_provider_dpone.get_provider_info import get_provider_info

    page = (DOCS / "connections.md").read_text()
    keys = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)))
    [connection] = get_provider_info()["connection-types"]
    # The settings are a JSON object, for which the form has no field.
    assert sorted(keys) == sorted({*connection["conn-fields"], "session_settings"})


def test_the_checks_of_preflight_are_named_as_it_names_them() -> None:
    page = (DOCS / "preflight-and-init.md").read_text()
    package = Path(airflow_provider_dpone.__file__).parent
    code = "".join(file.read_text() for file in package.rglob("*.py"))
    shown = re.findall(r"^(?:ok|FAIL) +(\S.*?)(?:  .*)?$", page, re.MULTILINE)
    assert len(shown) > 15
    assert [name for name in shown if f'"{name}"' not in code] == []


def test_the_receipt_that_is_shown_is_one() -> None:
    page = (DOCS / "reference" / "record-and-receipt.md").read_text()
    [shown] = [json.loads(block) for block in blocks(page, "json")]
    jsonschema.validate(shown, json.loads((DOCS / "schemas" / f"{SHOWN}.json").read_text()))


SHOWN: Final = "cluster-full-refresh-receipt.v1"


def test_the_demo_says_what_its_page_shows() -> None:
    demo = (CHECKOUT / "scripts" / "lib" / "demo_lost_reply.py").read_text()
    shown = next(blocks((DOCS / "demo.md").read_text(), "text"))
    facts = re.findall(r"^  ✓ (.+)$", shown, re.MULTILINE)
    assert len(facts) > 10
    for fact in facts:
        # Numbers, names and lists are filled in.
        words = max(re.split(r"[\d,]+|[\[:(]| flights", fact), key=len).strip()
        assert words in demo, fact


def test_the_demo_for_the_eyes_prints_what_its_page_shows() -> None:
    from scripts.lib.demo_ui import TEXT

    _, shown = blocks((DOCS / "demo.md").read_text(), "text")
    # Addresses, names and the folder are filled in.
    pattern = re.sub(r"\\{\w+\\}", lambda _: ".+", re.escape(TEXT.strip()))
    assert re.fullmatch(pattern, shown.strip())


def test_the_schemas_are_those_of_the_code_and_no_others() -> None:
    schemas = generate().schemas()
    files = {file.name: json.loads(file.read_text()) for file in (DOCS / "schemas").iterdir()}
    assert files == {name: json.loads(schema) for name, schema in schemas.items()}, (
        "run: python docs/generate.py"
    )


# ---- links


@ANY_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.is_relative_to(CHECKOUT)
        assert found.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    titles = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def test_every_page_can_be_reached_from_the_first() -> None:
    reached: set[Path] = set()
    waiting = [CHECKOUT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)\s#]+)", without_code(page.read_text()))
        waiting += [(page.parent / target).resolve() for target in targets if "://" not in target]
    assert set(PAGES) - reached == set()


# ---- decisions


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_says_why_and_what_follows(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.name[:4]}. ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
    assert 15 <= len(text.splitlines()) <= 32


def test_every_dependency_is_justified() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    needed = [
        *project["dependencies"],
        *(d for extra in project["optional-dependencies"].values() for d in extra),
    ]
    names = {re.split(r"[<>=!~ \[]", dependency)[0] for dependency in needed}
    assert len(names) >= 3
    page = (DOCS / "adr" / "0002-run-time-dependencies.md").read_text()
    assert {name for name in names if not re.search(rf"^\| `{name}\b", page, re.MULTILINE)} == set()


# ---- examples


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_is_a_dag(file: Path) -> None:
    dags = list(dags_of(file))
    assert dags
    shown = [dag for dag in dags if not dag.dag_id.endswith("_consumer")]
    assert shown
    for dag in shown:
        dag.check_cycle()
        # As Airflow does when it loads a DAG; this finds the stage task of publish and cleanup.
        for task in dag.tasks:
            task.resolve_template_files()
        assert {task.task_id.rpartition(".")[2] for task in dag.tasks} >= {"stage", "publish", "cleanup"}


def dags_of(file: Path) -> Iterator[DAG]:
    """The DAGs that Airflow finds in a file: those that were entered with a ``with``."""
    from airflow.sdk.definitions._internal.contextmanager import DagContext

    DagContext.autoregistered_dags.clear()
    DagContext.current_autoregister_module_name = "example"
    try:
        runpy.run_path(str(file), run_name="example")
        yield from (dag for dag, _ in DagContext.autoregistered_dags)
    finally:
        DagContext.current_autoregister_module_name = None
        DagContext.autoregistered_dags.clear()


@ANY_PAGE
def test_python_is_shown_only_from_files_that_are_tested(page: Path) -> None:
    text = page.read_text()
    if page == ABOUT_TESTS:
        for block in blocks(text, "python"):
            compile(block, str(page), "exec")
        return
    included = re.findall(r"<!-- example: (\S+\.py)[^>]*-->\n```python\n", text)
    assert len(included) == len(list(blocks(text, "python")))
    assert {CHECKOUT / file for file in included} <= set(EXAMPLES)


# ---- commands


def starts_a_script(words: list[str]) -> None:
    """What it does is tested elsewhere: continuous integration runs ``scripts/test``, which is this."""
    script = CHECKOUT / words[0]
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=30)
    usage = script.read_text()
    assert [word for word in words[1:] if word not in usage] == []


def installs_the_package(words: list[str]) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    [requirement] = words[2:]
    name, _, extra = requirement.rstrip("]").partition("[")
    assert name == project["name"]
    assert not extra or extra in project["optional-dependencies"]


def is_a_command_of_ours(words: list[str]) -> None:
    from airflow.cli.cli_parser import AirflowHelpFormatter, _add_command

    parser = argparse.ArgumentParser(prog="airflow", formatter_class=AirflowHelpFormatter)
    subparsers = parser.add_subparsers()
    for command in commands():
        _add_command(subparsers, command)
    assert callable(parser.parse_args(words[1:]).func)


def sets_a_variable(words: list[str]) -> None:
    from airflow_provider_dpone.options import OPTIONS

    name, _, value = words[1].partition("=")
    if (option := re.fullmatch(r"AIRFLOW__DPONE__([A-Z_]+)", name)) is not None:
        assert option[1].lower() in OPTIONS
        return
    from airflow.sdk import Connection

    from airflow_provider_dpone.hooks.clickhouse import connection_settings

    assert name.startswith("AIRFLOW_CONN_")
    settings = connection_settings(Connection.from_json(value, conn_id=name))
    assert settings.secure
    assert all(port == 8443 for _, port in settings.hosts)
    assert len({*settings.replicas.values()}) in (0, 2)
    assert all(port == 8443 for _, port in settings.replicas.values())


def checks_the_pages(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *words[1:], "--check"], cwd=CHECKOUT, check=False, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stdout.decode()


def starts_the_docker_profile(words: list[str]) -> None:
    """No engine is needed to see that the file, the profile and the command are there."""
    assert words[2] == "-f"
    services = yaml.safe_load((CHECKOUT / words[3]).read_text())["services"]
    rest = words[4:]
    if rest[0] == "--profile":
        assert any(rest[1] in service.get("profiles", ()) for service in services.values())
        rest = rest[2:]
    assert rest in (["up", "--wait"], ["down", "--volumes"])


CHECKS: Final[Mapping[str, Callable[[list[str]], None]]] = {
    "scripts/demo": starts_a_script,
    "scripts/test": starts_a_script,
    "scripts/test-ui": starts_a_script,
    "scripts/check": starts_a_script,
    "pip install": installs_the_package,
    "airflow dpone": is_a_command_of_ours,
    "export": sets_a_variable,
    "python docs/generate.py": checks_the_pages,
    "docker compose": starts_the_docker_profile,
}
"""How a command of the pages is checked, by how it begins."""


def shell_commands(page: Path) -> Iterator[list[str]]:
    for block in blocks(page.read_text(), "(?:bash|sh|shell|console)"):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


@ANY_PAGE
def test_commands_do_what_the_pages_say(page: Path) -> None:
    for words in shell_commands(page):
        if page == TUTORIAL and words[0] != "docker":
            continue
        beginning = next((b for b in CHECKS if words[: len(b.split())] == b.split()), None)
        assert beginning is not None, f"no check for {words}"
        CHECKS[beginning](words)


def test_the_first_two_commands_of_the_readme() -> None:
    assert [words[0] for words in shell_commands(CHECKOUT / "README.md")][:2] == [
        "scripts/demo",
        "scripts/test",
    ]


# ---- what must not be there


@ANY_PAGE
def test_pictures_are_files(page: Path) -> None:
    """A diagram in the text would be drawn by a program that the reader's browser fetches from elsewhere."""
    assert list(blocks(page.read_text(), "mermaid")) == []


def test_the_pictures_are_those_of_the_program_that_draws_them() -> None:
    pictures = generate().pictures()
    files = {file.name: file.read_text() for file in (DOCS / "images").glob("*.svg")}
    assert files == pictures, "run: python docs/generate.py"


def test_photographs_are_of_the_page_and_small() -> None:
    photographs = [file for file in (DOCS / "images").iterdir() if file.suffix != ".svg"]
    assert [file.name for file in photographs if not re.fullmatch(r"page-[a-z-]+\.png", file.name)] == []
    assert sum(file.stat().st_size for file in photographs) < 1_500_000
    shown = "".join(page.read_text() for page in PAGES)
    assert [file.name for file in photographs if f"images/{file.name}" not in shown] == []


def test_the_picture_of_the_phases_has_every_phase() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures.py"))
    named = {phase for move in drawn["MOVES"] for phase in move}
    assert named == {*drawn["PHASES"], drawn["GIVEN_UP"]} == {phase.value for phase in Phase}


@ANY_PAGE
def test_json_can_be_read(page: Path) -> None:
    for block in blocks(page.read_text(), "json"):
        json.loads(block)


def test_the_changelog_has_this_version() -> None:
    changelog = (CHECKOUT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(airflow_provider_dpone.__version__)}\b", changelog, re.MULTILINE)
