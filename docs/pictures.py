"""Draws the two pictures of these pages as SVG: plain files, so that nothing is fetched or run to see them.

``python docs/generate.py`` writes them; a test compares the phases and their names with the code's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

# ---- a refresh as a conversation

ACTORS: Final = ("task", "record in Keeper", "distributed-DDL queue", "replicas")
T, R, Q, C = range(4)

Message = tuple[int, int, str]
"""From, to, and what is said. From an actor to itself is a heading over the whole width."""

CONVERSATION: Final[tuple[Message, ...]] = (
    (T, T, "stage"),
    (T, C, "look: topology, table, control record, grants"),
    (T, C, "create the candidate, load it once"),
    (T, C, "wait until complete, compare the content of all replicas"),
    (T, R, "compare-and-swap: PREPARED"),
    (T, T, "publish"),
    (T, C, "compare the content again, look again"),
    (T, R, "compare-and-swap: DISPATCHING, with my write id"),
    (R, T, "read back: my write id, one version on = permit"),
    (T, Q, "EXCHANGE ... ON CLUSTER, once"),
    (Q, C, "each replica swaps by itself"),
    (T, Q, "what became of the entry with my token? (again, until the time is up)"),
    (T, R, "BOUND, then TERMINAL: the complete receipt"),
    (T, C, "look: which table is live on each replica?"),
    (T, R, "COMMITTED"),
    (T, T, "cleanup"),
    (T, R, "the target is free, the old table is listed"),
    (T, C, "drop the old table, where it is proven to be that one"),
)

# ---- the phases of a record

PHASES: Final = (
    "LOCKED",
    "STAGING",
    "PREPARED",
    "DISPATCHING",
    "BOUND",
    "TERMINAL",
    "COMMITTED",
    "COMPLETED_RETAINING",
    "COMPLETED",
)
GIVEN_UP: Final = "ABORTED"
INDEPENDENT: Final = ("LOCKED", "STAGING")
MOVES: Final = (
    ("LOCKED", "STAGING"),
    ("STAGING", "PREPARED"),
    ("LOCKED", GIVEN_UP),
    ("STAGING", GIVEN_UP),
    ("PREPARED", "DISPATCHING"),
    ("DISPATCHING", "PREPARED"),
    ("DISPATCHING", "BOUND"),
    ("DISPATCHING", "TERMINAL"),
    ("BOUND", "TERMINAL"),
    ("DISPATCHING", "COMMITTED"),
    ("BOUND", "COMMITTED"),
    ("TERMINAL", "COMMITTED"),
    ("PREPARED", GIVEN_UP),
    ("TERMINAL", GIVEN_UP),
    ("COMMITTED", "COMPLETED_RETAINING"),
    ("COMMITTED", "COMPLETED"),
    ("COMPLETED_RETAINING", "COMPLETED"),
)

# Dark on a light card, so that it can be read on a light page and on a dark one.
_STYLE: Final = (
    "<style>text{font:13px system-ui,sans-serif;fill:#1f2937}"
    ".s{font-size:12px;fill:#374151;paint-order:stroke;stroke:#f8fafc;stroke-width:3px}"
    ".h{font-weight:600}.b{fill:#fff;stroke:#64748b}.l{fill:none;stroke:#475569;marker-end:url(#a)}"
    ".d{stroke:#94a3b8;stroke-dasharray:4 4}.n{fill:#e2e8f0}</style>"
    '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 10 5 0 10z" fill="#475569"/></marker></defs>'
)


def _svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img">\n<title>{escape(title)}</title>\n{_STYLE}\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#f8fafc"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, text: str) -> str:
    rect = f'<rect class="b" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>'
    return rect + _text(x + width / 2, y + height / 2 + 4.5, text, "h")


def _line(path: str) -> str:
    return f'<path class="l" d="{path}"/>'


def refresh() -> str:
    """Return the picture of one refresh."""
    columns = (70, 300, 530, 760)
    step, top = 34, 64
    bottom = top + step * len(CONVERSATION) + 10

    def parts() -> Iterator[str]:
        for x, name in zip(columns, ACTORS, strict=True):
            yield f'<path class="d" d="M{x} 46V{bottom}"/>'
            yield _box(x - (55 if x == columns[0] else 85), 14, 110 if x == columns[0] else 170, 32, name)
        for number, (one, other, words) in enumerate(CONVERSATION):
            y = top + step * number + 22
            if one == other:
                yield f'<rect class="n" x="14" y="{y - 17}" width="832" height="24" rx="4"/>'
                yield _text(430, y, words, "h")
                continue
            yield _line(f"M{columns[one]} {y}H{columns[other]}")
            yield _text(min(columns[one], columns[other]) + 8, y - 5, words, "s", "start")

    return _svg(860, bottom + 16, "One refresh: stage, publish and cleanup, and who is asked what", parts())


def phases() -> str:
    """Return the picture of the phases and the moves between them."""
    left, width, height, step, top = 330, 200, 34, 64, 20
    at = {name: top + step * number for number, name in enumerate(PHASES)}
    middle = {name: y + height / 2 for name, y in at.items()}
    right = left + width

    def parts() -> Iterator[str]:
        for name, y in at.items():
            yield _box(left, y, width, height, name)
        x, y = right + 12, middle[INDEPENDENT[-1]] - step / 2
        yield _text(x, y - 2, "only where replicas", "s", "start") + _text(
            x, y + 14, "are independent", "s", "start"
        )
        yield _box(20, at["TERMINAL"], 130, height, GIVEN_UP)
        for one, other in MOVES:
            if other == GIVEN_UP and one == "TERMINAL":
                yield _line(f"M{left} {middle[one]:g}H150")
                yield _text(240, middle[one] - 20, "resolved as", "s") + _text(
                    240, middle[one] - 6, "not published", "s"
                )
            elif other == GIVEN_UP:
                yield _line(f"M{left} {middle[one]:g}H85V{at['TERMINAL']}")
                yield _text(200, middle[one] - 6, "given up", "s")
            elif PHASES.index(other) < PHASES.index(one):
                y, end = middle[one], middle[other] + 10
                yield _line(f"M{left} {y:g}C{left - 50} {y:g} {left - 50} {end:g} {left} {end:g}")
                yield _text(left - 48, (y + end) / 2 + 2, "the permit was", "s", "end")
                yield _text(left - 48, (y + end) / 2 + 16, "provably not used", "s", "end")
            elif PHASES.index(other) == PHASES.index(one) + 1:
                yield _line(f"M{left + width / 2:g} {at[one] + height}V{at[other]}")
            else:
                bulge = right + 35 * (PHASES.index(other) - PHASES.index(one)) - 10
                start, end = middle[one] + 5, middle[other] - 5
                yield _line(f"M{right} {start:g}C{bulge} {start:g} {bulge} {end:g} {right} {end:g}")

    return _svg(660, top + step * len(PHASES), "The phases of a record, and the moves between them", parts())


PICTURES: Final = {"refresh.svg": refresh, "phases.svg": phases}
"""File in ``docs/images`` -> what draws it."""
