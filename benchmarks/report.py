"""What a part of the benchmark found, as values, and how that looks in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and what was measured; ``met`` is None where this run could not tell."""

    goal: str
    figure: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Report:
    """All that one part found."""

    tables: tuple[Table, ...]
    verdicts: tuple[Verdict, ...] = ()


_WORDS = {True: "met", False: "**not met**", None: "cannot tell"}


def verdict_table(verdicts: Iterable[Verdict]) -> Table:
    """Goals against figures."""
    rows = tuple((v.goal, v.figure, _WORDS[v.met]) for v in verdicts)
    return Table("Goals", ("goal", "figure", ""), rows)


def markdown(table: Table) -> str:
    """A heading, the table with its columns aligned, and its note."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    rule = tuple(
        "-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)
    )
    # A column without a heading is one of words, which read from the left.
    rule = tuple(
        "-" * width if not name else dashes
        for width, name, dashes in zip(widths, table.columns, rule, strict=True)
    )
    text = [f"### {table.title}", "", _line(table.columns, widths), _line(rule, widths)]
    text += [_line(row, widths) for row in table.rows]
    if table.note:
        text += ["", table.note]
    return "\n".join(text) + "\n"


def document(reports: Sequence[Report], preamble: str) -> str:
    """The whole run: what it ran on, the goals, then every table."""
    verdicts = [verdict for report in reports for verdict in report.verdicts]
    tables = [verdict_table(verdicts)] if verdicts else []
    tables += [table for report in reports for table in report.tables]
    return "\n".join([preamble, "", *map(markdown, tables)])


BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def replaced(page: str, figures: str, name: str = "figures") -> str:
    """``page`` with ``figures`` between the two marks of ``name``.

    Raises ValueError where they are missing.
    """
    opening, closing = (one.replace("figures", name) for one in (BEGIN, END))
    before, begin, rest = page.partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end:
        raise ValueError(f"the page has no {opening} followed by {closing}")
    return f"{before}{begin}\n\n{figures.strip()}\n\n{end}{after}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"
