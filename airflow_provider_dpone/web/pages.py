"""Rendering: templates that escape everything, and links that are relative to where the page is."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

_TEMPLATES: Final = Path(__file__).parent / "templates"
_SHOWN_AS_CODE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


class Pages:
    """The templates."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalize,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters["ticked"] = ticked

    def render(self, template: str, **values: Any) -> str:
        """Return a page's HTML."""
        return self._environment.get_template(template).render(**values)


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses within the page, relative to the one that is shown: they work under any prefix, behind any proxy.

    :ivar root: leads to the page's own root.
    """

    root: str

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> Links:
        """Return the links of the page that a request asks for."""
        path = bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("ascii", "replace")
        path = path or str(scope.get("path", ""))
        below = path.removeprefix(str(scope.get("root_path", "")))
        return cls("../" * (below.count("/") - 1) or "./")

    def operation(self, dag_id: str, operation_id: str, cluster: str) -> str:
        """Return the address of a receipt."""
        return f"{self.root}dags/{_quoted(dag_id)}/operations/{_quoted(operation_id)}/{_quoted(cluster)}"

    def listed(self, **wanted: str) -> str:
        """Return the address of the list with these filters."""
        asked = {name: value for name, value in wanted.items() if value}
        return f"{self.root}?{urlencode(asked)}" if asked else self.root


def plain(text: str) -> str:
    """Return text in which nothing is invisible or turns the reading direction: such characters are shown as codes."""
    if text.isprintable():
        return text
    return "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) in _SHOWN_AS_CODE else c for c in text)


def ticked(text: str) -> Markup:
    """Return text as HTML in which what stands between backticks is code, as the texts of the stable codes mean it."""
    parts = [escape(plain(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return escape(plain(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )


def _finalize(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return plain(value)


def _quoted(text: str) -> str:
    return quote(text, safe="")
