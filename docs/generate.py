"""Writes the parts of these pages that repeat what the code says.

    python docs/generate.py           write them anew
    python docs/generate.py --check   change nothing; exit status 1 if a page is behind the code

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``. A Python block that is
(a part of) a DAG file follows ``<!-- example: FILE [PART] -->``; the part is marked ``# [START PART]`` there.
The JSON Schemas in ``schemas/`` and the pictures in ``images/`` are written as well.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parent
CHECKOUT: Final = DOCS.parent
if str(CHECKOUT) not in sys.path:
    sys.path.insert(0, str(CHECKOUT))  # the type map lies with its tests
_PART: Final = re.compile(
    r"(?P<start><!-- generated: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(?P<end><!-- end of (?P=name) -->)",
    re.DOTALL,
)
_EXAMPLE: Final = re.compile(
    r"(?P<start><!-- example: (?P<file>\S+\.py)(?: (?P<part>\w+))? -->\n```python\n)(?P<body>.*?)(?P<end>```)",
    re.DOTALL,
)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def markdown(docstring: str) -> str:
    """Return one paragraph of a docstring as Markdown in one line."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", docstring)
    return " ".join(text.replace("``", "`").split())


# ---- codes


def codes() -> str:
    """Return every code by category, with what Airflow does about it."""
    from airflow_provider_dpone.publication.stop import MEANINGS, Category

    parts: list[str] = []
    for category in Category:
        rows = [
            (f"`{code.value}`", _tags(meaning.meaning), _tags(meaning.next_action))
            for code, meaning in MEANINGS.items()
            if meaning.category is category
        ]
        parts.append(f"## {category.value}\n\n{_airflow_does(category)}\n")
        parts.append(table(("code", "what it means", "what is safe next"), rows))
    return "\n".join(parts)


def _tags(text: str) -> str:
    """Keep names in angle brackets from being taken for HTML."""
    return re.sub(r"<\w+>", r"`\g<0>`", text)


def _airflow_does(category: Any) -> str:
    """Return in words what the operators raise for a category, asked from the code that decides it."""
    from airflow.sdk.exceptions import AirflowFailException

    from airflow_provider_dpone.operators.outcome import failure
    from airflow_provider_dpone.publication.stop import MEANINGS, Stop

    code = next(code for code, meaning in MEANINGS.items() if meaning.category is category)
    raised = failure(Stop(code, "x"))
    said = str(raised).partition(" and everything is kept")[0]
    retried = (
        "The task fails without a retry."
        if isinstance(raised, AirflowFailException)
        else "The task fails, and Airflow retries it if tries are left. A retry observes first."
    )
    if not said.startswith(code.value):
        retried += f" The message begins: “{said} …”."
    return f"{retried}{_FIRST.get(category.value, '')}"


_FIRST: Final[Mapping[str, str]] = {
    "conflict": ' With `on_busy="wait"`, stage waits before that, up to `busy_timeout`.',
    "in_progress": " Publish waits before that, up to `publish_timeout`.",
    "not_observed": " Publish and cleanup wait before that where waiting helps, up to their deadlines.",
}
"""What happens before the task fails."""


# ---- text


def text_spellings() -> str:
    """Return the accepted spellings of text, from the table that the loading code documents."""
    from airflow_provider_dpone.clickhouse import exact

    _, head, body, *_ = re.split(r"^=+ +=+$", inspect.cleandoc(exact.__doc__ or ""), flags=re.MULTILINE)
    edge = head.index("accepted text") - 1
    rows: list[tuple[str, str]] = []
    for line in body.strip("\n").splitlines():
        name, text = line[:edge].strip(), line[edge:].strip()
        # A name that ends in a comma goes on in the next line; a line without a name goes on with the text.
        if rows and (not name or rows[-1][0].endswith(",")):
            rows[-1] = (f"{rows[-1][0]} {name}".strip(), f"{rows[-1][1]} {text}")
        else:
            rows.append((name, text))
    return table(("type", "accepted text"), [(markdown(name), markdown(text)) for name, text in rows])


# ---- the type map


def _cell(expected: Any) -> str:
    """Return what becomes of a value: what is stored, or how it is refused and what to do."""
    from tests.integration.type_map import Exact

    if not isinstance(expected, Exact):
        return f"{expected.how}: {expected.way_out}"
    if expected.stored is None:
        return "exact: NULL"
    shown = f"hex {expected.stored}" if expected.as_hex else _shown(expected.stored)
    return "exact: empty" if not expected.stored else f"exact: {shown}"


def _shown(text: str) -> str:
    """Return a value as code, with what can't be seen written as Python writes it."""
    inside = repr(text)[1:-1].replace("\\\\", "\\")
    return f"`` {inside} ``" if "`" in inside else f"`{inside}`"


def type_map_postgres() -> str:
    """Return every cell of PostgreSQL."""
    from tests.integration.type_map import POSTGRES

    rows = []
    for cell in POSTGRES:
        by_copy = "goes through the driver" if cell.by_driver_only else _cell(cell.copy)
        by_driver = _cell(cell.driver or cell.copy)
        rows.append(
            (
                cell.type,
                _shown(cell.sql),
                _shown(cell.target),
                by_copy,
                "the same" if by_driver == by_copy else by_driver,
            )
        )
    return table(("PostgreSQL", "value", "ClickHouse", "by COPY", "through the driver"), rows)


def type_map_driver() -> str:
    """Return every cell of a driver's Python values."""
    from tests.integration.type_map import DRIVER

    rows = [
        (type(cell.value).__name__, _shown(repr(cell.value)), _shown(cell.target), _cell(cell.expected))
        for cell in DRIVER
    ]
    return table(("Python type", "value", "ClickHouse", "what becomes of it"), rows)


def type_map_arrow() -> str:
    """Return every cell of Arrow and Parquet."""
    from tests.integration.type_map import ARROW

    rows = [
        (
            _shown(cell.type.replace("pa.", "")),
            _shown(repr(cell.value)),
            _shown(cell.target),
            _cell(cell.expected),
        )
        for cell in ARROW
    ]
    return table(("Arrow", "value", "ClickHouse", "what becomes of it"), rows)


# ---- measured


def measured_sources() -> str:
    """Return the table of the last recorded run of ``scripts/bench sources``, with its conditions."""
    found = json.loads((CHECKOUT / "benchmarks" / "last.json").read_text()).get("sources")
    if found is None:
        return (
            "No run is recorded yet. `scripts/bench sources --json benchmarks/last.json` measures, and "
            "`docs/generate.py` puts the table here.\n"
        )
    rows = [
        (
            result["name"],
            f"{result['ours']:,.1f} {result['unit']}",
            f"{result['theirs']:,.1f} {result['unit']}",
            f"{result['ratio']:.2f}",
            result["wanted"] + ("" if result["passed"] else " (missed)"),
        )
        for result in found["results"]
    ]
    head = f"Measured on {found['at'][:10]}: {found['conditions']}.\n\n"
    return head + table(("what", "ours", "the other", "ratio", "the project asks for"), rows)


# ---- as a provider


def tested_versions() -> str:
    """Return what ``scripts/test-matrix`` last found, on each Airflow and Python."""
    file = DOCS / "matrix.json"
    if not file.exists():
        return "No run is recorded yet. `scripts/test-matrix` makes one.\n"
    found = json.loads(file.read_text())
    made = found["made"]
    changed = " with uncommitted changes" if made["changed"] else ""
    results = {(one["airflow"], one["python"], one["step"]): one for one in found["results"]}
    rows = []
    for airflow, python in dict.fromkeys((one["airflow"], one["python"]) for one in found["results"]):
        steps = [results[airflow, python, step] for step in ("units", "refresh")]
        rows.append((airflow, python, _tested(steps), *map(_what_became, steps)))
    where = f"{made['cores']} cores, servers `{made['servers']}`"
    return f"Made {made['date']}, commit `{made['commit']}`{changed}, {where}.\n\n" + table(
        ("Airflow", "Python", "", "unit tests", "a refresh end to end"), rows
    )


def _tested(steps: Sequence[Mapping[str, Any]]) -> str:
    if any(step["failed"] for step in steps):
        return "**fails**"
    ran = [step["not_run"] is None for step in steps]
    return "tested" if all(ran) else "tested in part" if any(ran) else "untested"


def _what_became(step: Mapping[str, Any]) -> str:
    if step["not_run"] is not None:
        return f"not run: {step['not_run']}"
    counts = [
        f"{step[what]} {what}" for what in ("passed", "failed", "skipped") if step[what] or what == "passed"
    ]
    return f"{', '.join(counts)} in {step['seconds']:.0f} s"


def seen_in_browser() -> str:
    """Return what ``scripts/test-ui`` last saw."""
    file = DOCS / "browser.json"
    if not file.exists():
        return "No run is recorded yet. `scripts/test-ui` makes one.\n"
    found = json.loads(file.read_text())
    made, seen = found["made"], found["seen"]
    changed = " with uncommitted changes" if made["changed"] else ""
    where = (
        f"Made {made['date']}, commit `{made['commit']}`{changed}: {made['browser']}, Playwright "
        f"{made['playwright']}, axe-core {made['axe']}, Airflow {made['airflow']} on SQLite, Python "
        f"{made['python']}, servers `{made['servers']}`, {made['cores']} cores.\n"
    )
    judged = sum(one["judged"] for one in seen)
    minutes = sum(one["seconds"] for one in seen) / 60
    total = f"{len(seen)} passed in {minutes:.0f} minutes; axe judged {judged} times and found nothing.\n\n"
    rows = ((one["what"], str(one["judged"] or ""), f"{one['seconds']:.0f}") for one in seen)
    return f"{where}\n{total}" + table(("what", "judged by axe", "seconds"), rows)


def metrics() -> str:
    """Return every metric, from the table that sends them."""
    from airflow_provider_dpone.operators.metrics import METRICS
    from airflow_provider_dpone.publication.stop import Category

    rows = []
    for one in METRICS:
        outcomes = [f"`{word}`" for word in (*one.outcomes, *map(str, Category))] if one.outcomes else []
        rows.append((f"`{one.name}`", one.kind, markdown(one.meaning), ", ".join(outcomes)))
    return table(("metric", "kind", "meaning", "tag `outcome`"), rows)


# ---- decisions


def decisions() -> str:
    """Return the list of architecture decisions."""
    lines = []
    for page in sorted((DOCS / "adr").glob("[0-9]*.md")):
        title = page.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"* [{title}]({page.name})\n")
    return "".join(lines)


# ---- grants


def _grant_rows(grants: Iterable[Any]) -> str:
    return table(
        ("privilege", "on", "what for"),
        [
            (
                f"`{grant.privilege}`",
                f"`{grant.scope.replace('`', '')}`",
                grant.why + (" (some servers don't ask for it)" if grant.configurable else ""),
            )
            for grant in grants
        ],
    )


def _grant_statements(grants: Iterable[Any]) -> str:
    from airflow_provider_dpone.clickhouse.grants import statements

    return "```sql\n" + "".join(f"{line};\n" for line in statements(grants, "dpone_app")) + "```\n"


def grants_of_refresh() -> str:
    """Return what a refresh of ``mart.orders`` needs."""
    from airflow_provider_dpone.clickhouse.grants import required_grants
    from airflow_provider_dpone.routes.ports import Target

    needed = required_grants(Target("analytics", "mart", "orders"))
    return _grant_rows(needed) + "\nAs statements:\n\n" + _grant_statements(needed)


def grants_of_independent() -> str:
    """Return which grants every replica asks for by itself, where the tables of ``mart.orders`` are independent."""
    from airflow_provider_dpone.clickhouse.grants import needed_directly, required_grants
    from airflow_provider_dpone.routes.ports import Target

    needed = needed_directly(required_grants(Target("analytics", "mart", "orders"), independent=True), "mart")
    return _grant_rows(needed) + "\nAs statements:\n\n" + _grant_statements(needed)


def grants_of_table_functions() -> str:
    """Return what loading a file and reading a given structure need on top."""
    from airflow_provider_dpone.clickhouse.grants import READ_ON_FILE

    return _grant_rows([READ_ON_FILE]) + "\nAs a statement:\n\n" + _grant_statements([READ_ON_FILE])


def grants_of_init() -> str:
    """Return what ``airflow dpone init`` needs."""
    from airflow_provider_dpone.clickhouse.grants import required_grants_of_init

    needed = required_grants_of_init()
    return _grant_rows(needed) + "\nAs statements:\n\n" + _grant_statements(needed)


# ---- arguments


def arguments(name: str) -> Callable[[], str]:
    """Return a generator of the table of a class's or a function's arguments."""

    def generate() -> str:
        owner = _owner(name)
        documented = _params(owner)
        templated = _templated(owner)
        rows = [
            (f"`{argument}`", default, "yes" if argument in templated else "", documented.pop(argument))
            for argument, default in _defaults(owner)
        ]
        if documented:
            raise ValueError(f"{name} documents {', '.join(documented)}, which it hasn't")
        return table(("argument", "default", "templated", "meaning"), rows)

    return generate


def _owner(name: str) -> Any:
    import airflow_provider_dpone
    from airflow_provider_dpone import operators

    return getattr(operators, name, None) or getattr(airflow_provider_dpone, name)


def _defaults(owner: Any) -> Iterator[tuple[str, str]]:
    for parameter in inspect.signature(owner).parameters.values():
        if parameter.name == "kwargs":
            continue  # BaseOperator's own
        yield parameter.name, default_text(parameter.name, parameter.default, parameter.kind)


def default_text(name: str, value: Any, kind: Any = None) -> str:
    """Return a default as people read it."""
    if value is inspect.Parameter.empty:
        return "" if kind is inspect.Parameter.VAR_KEYWORD else "**required**"
    if name == "max_source_bytes":
        return "**required**"  # 0 stands for "not given" and is refused
    match value:
        case str():
            return f'`"{value}"`'
        case timedelta():
            return f"{value.total_seconds():g} s"
        case Mapping():
            return "`{}`"
        case _:
            return f"`{value!r}`"


def _params(owner: Any) -> dict[str, str]:
    """Return the ``:param`` texts of a docstring, those of the base classes included."""
    found: dict[str, str] = {}
    owners = (
        [owner]
        if inspect.isfunction(owner)
        else [c for c in owner.__mro__ if c.__module__.startswith("airflow_provider_dpone")]
    )
    for each in owners:
        text = inspect.cleandoc(each.__doc__ or "")
        for name, meaning in re.findall(r"^:param (\w+): (.*?)(?=^:|\Z)", text, re.DOTALL | re.MULTILINE):
            sentence = markdown(meaning)
            found.setdefault(name, sentence[0].upper() + sentence[1:])
    return found


def _templated(owner: Any) -> frozenset[str]:
    if inspect.isfunction(owner):
        return frozenset()
    if hasattr(owner, "rendered") and not hasattr(owner, "templated_fields"):
        return frozenset(field.name for field in dataclasses.fields(owner))
    return frozenset(getattr(owner, "templated_fields", ()) or getattr(owner, "template_fields", ()))


# ---- defaults


def provider_options() -> str:
    """Return the options of ``airflow.cfg``, section ``[dpone]``."""
    from airflow_provider_dpone.options import OPTIONS

    return table(
        ("option", "default", "meaning"),
        [
            (
                f"`{option.name}`",
                f"`{option.default}`" if option.default else "empty",
                markdown(option.description),
            )
            for option in OPTIONS.values()
        ],
    )


def operator_defaults() -> str:
    """Return the defaults of what a DAG author can set, in one table."""
    rows: list[tuple[str, str, str]] = []
    for name in (
        "ClusterRefresh",
        "SqlSource",
        "FileSource",
        "StageOperator",
        "PublishOperator",
        "CleanupOperator",
    ):
        rows += [(name, f"`{argument}`", default) for argument, default in _defaults(_owner(name))]
    return table(("where", "argument", "default"), rows)


def fixed_times() -> str:
    """Return the lengths of time that no option changes, and those of the connection."""
    from airflow_provider_dpone.clickhouse import (
        catalog,
        ddl_queue,
        initialise,
        load,
        progress,
        watching,
    )
    from airflow_provider_dpone.clickhouse.authority import Authority
    from airflow_provider_dpone.clickhouse.server import ConnectionSettings
    from airflow_provider_dpone.operators import cleanup
    from airflow_provider_dpone.operators import publish as publish_operator
    from airflow_provider_dpone.routes.cluster_refresh import Waits
    from airflow_provider_dpone.triggers import poller
    from airflow_provider_dpone.triggers import publication as trigger

    def of(owner: Any, name: str) -> Any:
        return next(field.default for field in dataclasses.fields(owner) if field.name == name)

    rows: list[tuple[float, str]] = [
        (of(ConnectionSettings, "connect_timeout"), "to connect, per host (extra `connect_timeout`)"),
        (
            of(ConnectionSettings, "read_timeout"),
            "for which a server may be silent (extra `send_receive_timeout`)",
        ),
        (catalog.OBSERVE_TIMEOUT, "for one look at all replicas"),
        (
            float(catalog._PATIENCE_BETWEEN_REPLICAS["receive_timeout"]),
            "for which one replica may be silent within such a look",
        ),
        (catalog.CONTENT_TIMEOUT, "for the content digest of a table on all replicas"),
        (of(load.Limits, "create"), "for the replicas to create the candidate"),
        (of(load.Limits, "poll"), "between two looks at a running load"),
        (load._SETTLE_SECONDS, "to prove that a load without a reply has ended"),
        (of(Authority, "timeout"), "for which a server may be silent about a compare-and-swap"),
        (
            of(Authority, "visible_within"),
            "for an acknowledged compare-and-swap to be visible to its read-back",
        ),
        (
            ddl_queue.TASK_TIMEOUT,
            "that the server waits for the replicas after the one statement was sent; then we look ourselves",
        ),
        (ddl_queue._ANSWER_TIMEOUT, "more, for its reply; after that it counts as lost"),
        (ddl_queue._QUEUE_TIMEOUT, "for one look at the DDL queue"),
        (of(Waits, "visible"), "for another worker's write to be visible, before a retry is left to Airflow"),
        (of(Waits, "poll_first"), "between the first two looks at what a task waits for; the pause doubles"),
        (of(Waits, "poll_last"), "between two looks at most"),
        (trigger.HOLD_SECONDS, "for which a publication stays deferred at least"),
        (
            poller.POLL_SECONDS,
            "between two looks of a triggerer at all publications that wait on one connection",
        ),
        (poller.LONGEST_POLL_SECONDS, "between two such looks that fail, at most; the pause doubles"),
        (watching.LOOK_TIMEOUT, "for each statement of such a look"),
        (
            trigger.RECHECK_SECONDS,
            "until a worker looks again, where the queue has told everything and a replica can't be read",
        ),
        (
            publish_operator.GRACE.total_seconds(),
            "after its deadline until Airflow gives up a deferral that no triggerer has ended",
        ),
        (cleanup.LONGEST_SLEEP.total_seconds(), "between two looks of a rescheduled cleanup task at most"),
        (
            inspect.signature(initialise.initialise).parameters["wait"].default,
            "that `airflow dpone init` waits for each of its steps to show on every replica",
        ),
        (progress._KILL_SECONDS, "for the reply to a `KILL QUERY` of the own load"),
    ]
    return table(("seconds", "what for"), [(f"{float(seconds):g}", text) for seconds, text in rows])


def bounds() -> str:
    """Return the bounds that are not lengths of time."""
    from airflow_provider_dpone.operators import xcom
    from airflow_provider_dpone.publication import admission, receipt, record
    from airflow_provider_dpone.sources import json_file

    rows = [
        (
            f"{record.MAX_PAYLOAD_BYTES:,} bytes",
            "the record of one target; a larger one is refused (`RECORD_TOO_LARGE`)",
        ),
        (f"{record.MAX_SETTLED}", "settled operations that a record remembers"),
        (
            f"{record.MAX_RETAINED}",
            "tables that are kept for one target; before that the next operation is refused (`TOO_MANY_RETAINED`)",
        ),
        (f"{xcom.MAX_BYTES:,} bytes", "a receipt in XCom"),
        (f"{receipt.MAX_DEPENDENTS}", "dependents that a receipt lists"),
        (f"{json_file._MAX_LINE_BYTES:,} bytes", "one line of a JSON file"),
        (".".join(map(str, admission.OLDEST_SERVER)), "oldest release of ClickHouse that is admitted"),
    ]
    return table(("bound", "of what"), rows)


# ---- evidence


def evidence_kinds() -> str:
    """Return every kind of entry with its fields."""
    from airflow_provider_dpone.publication.trail import KINDS, Classification, Entry, Proven, schema_of

    parts = ["## The envelope\n", "Around each kind:\n", _fields(Entry, "schema", "kind")]
    for kind, owner in KINDS.items():
        first = inspect.cleandoc(owner.__doc__ or "").partition("\n\n")[0]
        file = f"{schema_of(kind).removeprefix('dpone.clickhouse.')}.json"
        parts.append(f"## {kind}\n\n{markdown(first)} JSON Schema: [{file}](../schemas/{file}).\n")
        parts.append(_fields(owner))
        if owner is Classification:
            parts.append("What can be proven:\n")
            parts.append(table(("aggregate", "meaning"), _members(Proven)))
    return "\n".join(parts)


def _fields(owner: Any, *more: str) -> str:
    """Return the table of a dataclass's fields from its ``:ivar`` texts; every field must have one."""
    text = inspect.cleandoc(owner.__doc__ or "")
    found = dict(re.findall(r"^:ivar (\w+): (.*?)(?=^:|\Z)", text, re.DOTALL | re.MULTILINE))
    known = {
        "schema": "Names kind and version.",
        "kind": "The kind.",
        "body": "What the kind has, see below.",
    }
    rows = []
    for name in (*more, *(field.name for field in dataclasses.fields(owner))):
        meaning = markdown(found[name] if name in found else known[name])
        rows.append((f"`{name}`", meaning[0].upper() + meaning[1:]))
    return table(("field", "meaning"), rows)


def _members(owner: Any) -> list[tuple[str, str]]:
    """Return an enumeration's members with the docstrings that stand below them."""
    source = inspect.getsource(owner)
    return [
        (f"`{name}`", " ".join(meaning.split()))
        for name, meaning in re.findall(
            r'^    (\w+) = "[^"]*"\n    """(.*?)"""', source, re.DOTALL | re.MULTILINE
        )
    ]


def schemas() -> dict[str, str]:
    """Return the JSON Schemas of all that is stored or handed on, by file."""
    from airflow_provider_dpone.publication import receipt, record, trail

    found = {**record.json_schemas(), **receipt.json_schemas(), **trail.json_schemas()}
    return {
        f"{name.removeprefix('dpone.clickhouse.')}.json": json.dumps(schema, indent=2, ensure_ascii=False)
        + "\n"
        for name, schema in found.items()
    }


# ---- files


GENERATORS: Final[Mapping[str, Callable[[], str]]] = {
    "codes": codes,
    "decisions": decisions,
    "tested-versions": tested_versions,
    "seen-in-browser": seen_in_browser,
    "metrics": metrics,
    "type-map-postgres": type_map_postgres,
    "type-map-driver": type_map_driver,
    "type-map-arrow": type_map_arrow,
    "measured-sources": measured_sources,
    "text-spellings": text_spellings,
    "grants-of-refresh": grants_of_refresh,
    "grants-of-independent": grants_of_independent,
    "grants-of-table-functions": grants_of_table_functions,
    "grants-of-init": grants_of_init,
    "provider-options": provider_options,
    "operator-defaults": operator_defaults,
    "fixed-times": fixed_times,
    "bounds": bounds,
    "evidence-kinds": evidence_kinds,
    "arguments-stage-operator": arguments("StageOperator"),
    "arguments-publish-operator": arguments("PublishOperator"),
    "arguments-cleanup-operator": arguments("CleanupOperator"),
    "arguments-cluster-refresh": arguments("cluster_refresh"),
    "arguments-cluster-refresh-value": arguments("ClusterRefresh"),
    "arguments-table-structure": arguments("TableStructure"),
    "arguments-sql-source": arguments("SqlSource"),
    "arguments-file-source": arguments("FileSource"),
}


def pictures() -> dict[str, str]:
    """Return every picture by the name of its file."""
    return {name: draw() for name, draw in runpy.run_path(str(DOCS / "pictures.py"))["PICTURES"].items()}


def pages() -> Iterator[Path]:
    """Yield the pages, in order."""
    yield CHECKOUT / "README.md"
    yield from sorted(DOCS.rglob("*.md"))


def parts(text: str) -> list[str]:
    """Return the names of the generated parts of a page."""
    return [found["name"] for found in _PART.finditer(text)]


def generated(text: str) -> str:
    """Return a page with its generated parts and examples written anew.

    :raises KeyError: a part has a name that is not known.
    :raises ValueError: an example's part is not in its file.
    """
    text = _EXAMPLE.sub(
        lambda found: f"{found['start']}{example(found['file'], found['part'])}{found['end']}", text
    )
    return _PART.sub(lambda found: f"{found['start']}\n{GENERATORS[found['name']]()}\n{found['end']}", text)


def example(file: str, part: str | None) -> str:
    """Return a DAG file, or the part of it between its two marks.

    :raises ValueError: there is no such part.
    """
    code = (CHECKOUT / file).read_text()
    if part is not None:
        found = re.search(
            rf"^( *)# \[START {part}\]\n(.*?)^ *# \[END {part}\]\n", code, re.DOTALL | re.MULTILINE
        )
        if found is None:
            raise ValueError(f"{file} has no part {part}")
        code = textwrap.dedent(found[2])
    lines = [line for line in code.splitlines() if not re.match(r"\s*# \[(START|END) ", line)]
    return formatted("\n".join(lines))


def formatted(code: str) -> str:
    """Return code as the project's formatter has it: a part that was indented gets other blank lines."""
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff), "format", "--stdin-filename", "example.py", "-"]
    done = subprocess.run(command, input=code, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    return done.stdout


def main(arguments_: Sequence[str]) -> int:
    """Write the pages, or check them. Return the exit status."""
    check = list(arguments_) == ["--check"]
    if arguments_ and not check:
        sys.stderr.write(textwrap.dedent(__doc__ or ""))
        return 2
    behind = 0
    for page in pages():
        text = page.read_text()
        if (new := generated(text)) != text:
            behind += 1
            sys.stdout.write(f"{page.relative_to(CHECKOUT)}\n")
            if not check:
                page.write_text(new)
    for name, schema in schemas().items():
        file = DOCS / "schemas" / name
        if not file.exists() or json.loads(file.read_text()) != json.loads(schema):
            behind += 1
            sys.stdout.write(f"{file.relative_to(CHECKOUT)}\n")
            if not check:
                file.write_text(schema)
    for name, picture in pictures().items():
        file = DOCS / "images" / name
        if not file.exists() or file.read_text() != picture:
            behind += 1
            sys.stdout.write(f"{file.relative_to(CHECKOUT)}\n")
            if not check:
                file.write_text(picture)
    return int(check and behind > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
