"""One self-contained HTML page: no script, no link, nothing to fetch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from prefixhash.trace.checks import instance_of, items_of
from prefixhash.trace.plots import Picture, svg_panels

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #111; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #ccc; text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #333; }
svg { width: 100%; height: auto; }
p.note { color: #444; }
"""
_HEADINGS = {
    "curve": "Hit rate by capacity",
    "over_time": "Hit rate over time",
    "reuse_distances": "Reuse distances: the capacity that a hit needs",
    "working_set": "Working set",
}


@dataclass(frozen=True)
class PageTable:
    """A table of the page; all cells are text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def html_page(picture: Picture, tables: Sequence[PageTable]) -> str:
    """The page: the tables of the run, then the pictures. Raises `InvalidArgumentError`."""
    instance_of("picture", picture, Picture)
    for place, table in enumerate(items_of("tables", tables, "tables")):
        instance_of(f"tables[{place}]", table, PageTable)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(picture.title)}</title><style>{_CSS}</style></head><body>",
        f"<h1>{escape(picture.title)}</h1>",
        *(f'<p class="note">{escape(note)}</p>' for note in picture.notes),
        *(_table(table) for table in tables),
    ]
    for name, svg in svg_panels(picture).items():
        parts.append(f"<h2>{_HEADINGS[name]}</h2>\n{svg}")
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _table(table: PageTable) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f"<h2>{escape(table.title)}</h2>\n<table><tr>{head}</tr>\n{rows}</table>"
