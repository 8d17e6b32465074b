"""Pages of text, tables and pictures: in Markdown, and in HTML that needs no other file."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from recollect.system.disk import read_kept_bytes

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem }
th, td { border-bottom: 1px solid #ddd; padding: 0.25rem 0.6rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left; white-space: normal }
th { border-bottom: 2px solid #888 }
pre { background: #f5f5f5; padding: 0.8rem; overflow-x: auto; font-size: 0.8rem }
img { max-width: 100% }
"""


class Block(NamedTuple):
    """A part of a page, as Markdown and as HTML."""

    markdown: str
    html: str


def heading(level: int, text: str) -> Block:
    """Return a heading."""
    return Block(f"{'#' * level} {text}", f"<h{level}>{escape(text)}</h{level}>")


def paragraph(text: str) -> Block:
    """Return a few sentences."""
    return Block(text, f"<p>{escape(text)}</p>")


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    """Return a table."""
    ruled = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    tagged = [("th", head), *(("td", row) for row in rows)]
    lines = [f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in row)}</tr>" for tag, row in tagged]
    return Block(
        "\n".join(f"| {' | '.join(row)} |" for row in ruled),
        "\n".join(["<table>", *lines, "</table>"]),
    )


def code(lines: Sequence[str]) -> Block:
    """Return commands, one in a line."""
    return Block("\n".join(f"    {line}" for line in lines), f"<pre>{escape(chr(10).join(lines))}</pre>")


def picture(path: Path, text: str) -> Block:
    """Return a PNG file from the page's folder; HTML embeds it."""
    data = base64.b64encode(read_kept_bytes(path)).decode()
    html = f'<img alt="{escape(text)}" src="data:image/png;base64,{data}">'
    return Block(f"![{text}]({path.name})", html)


def as_markdown(blocks: Iterable[Block]) -> str:
    """Return a page as Markdown."""
    return "\n\n".join(block.markdown for block in blocks) + "\n"


def as_html(title: str, blocks: Iterable[Block]) -> str:
    """Return a page as one HTML file."""
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n" + "\n".join(block.html for block in blocks) + "\n</html>\n"
    )
