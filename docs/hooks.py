"""Pages of the site that are made from something else, so that none of them can be out of date."""

import re
import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, CONTRIBUTING and CHANGELOG, and the help of every command."""
    pages = {
        "index.md": _linked("README.md"),
        "contributing.md": _linked("CONTRIBUTING.md"),
        "changelog.md": _linked("CHANGELOG.md"),
        "command-line.md": command_line(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def command_line() -> str:
    """Return the help of every command, as typer prints it for documentation."""
    words = [sys.executable, "-m", "typer", "recollect.cli", "utils", "docs", "--name", "recollect"]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    text = printed.replace("# `recollect`\n", "# Command line\n", 1)
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+\n?", "", text)  # cut short; the page's contents list them
    text = re.sub(r"\* `--(version|help)`.*\n", "", text)
    text = re.sub(r"\*\*Options\*\*:\n\n(?=\n*(#|$))", "", text)
    return text.replace("$ recollect", "recollect").replace("```console", "```sh")


def _linked(name: str) -> str:
    """Return a page of the project's root, with links as they are inside docs/."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    text = text.replace('src="docs/', 'src="')
    return re.sub(r"\]\((CONTRIBUTING|CHANGELOG)\.md", lambda found: f"]({found[1].lower()}.md", text)
