"""Tables and numbers for people. Rich is imported when the first table is printed."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from prefixhash.errors import PrefixHashError

_PLAIN_WIDTH = 110


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    out: TextIO | None = None,
) -> None:
    """Prints a table; the first `left` columns are text, the others numbers."""
    try:
        from rich import box
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise PrefixHashError(
            "tables need rich: pip install 'prefixhash[cli]', or use --json"
        ) from error
    # As `Text`: names come from traces, and rich would read their brackets as markup.
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for place, name in enumerate(columns):
        # A column without a name holds bars.
        justify = "left" if place < left or not name else "right"
        table.add_column(Text(name), justify=justify, no_wrap=justify == "left")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    _write(table, out or sys.stdout)


def _write(renderable: Any, out: TextIO) -> None:
    from rich.console import Console

    # Rendered first and written by us: rich ends the process on a closed pipe in its own way.
    width = None if out.isatty() else _PLAIN_WIDTH
    console = Console(file=out, width=width, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    out.write("\n".join(lines) + "\n")


def printable(text: str) -> str:
    """`text` without what would move a terminal's cursor or change its colours."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def percent(rate: float) -> str:
    return f"{100 * rate:.2f} %"


def count(value: float) -> str:
    """`12,031`; fractions to one digit."""
    if math.isinf(value):
        return "unbounded"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def short(value: float) -> str:
    """`145 M`, `9.20 k`: three digits and a decimal prefix."""
    if math.isinf(value):
        return "unbounded"
    for factor, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor:
            scaled = value / factor
            return f"{scaled:.{max(0, 3 - len(str(int(scaled))))}f}{prefix}"
    return count(value)


def size(num_bytes: float) -> str:
    """`12.5 GiB`: binary units."""
    for factor, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{1000 * value:.1f} ms"


def bar(share: float, width: int = 30) -> str:
    """A horizontal bar, `share` of `width` characters long."""
    return "#" * round(max(0.0, min(share, 1.0)) * width)
