"""Hooks of mkdocs: pages from beside docs/, links out of docs/, and nothing from another host.

On GitHub a page may link to any file of the repository. On the site README, CONTRIBUTING, SECURITY and CHANGELOG are
pages too; a link to any other file outside docs/ becomes its path as text.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = ("README.md", "README.zh.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
"""Files of the root that are pages of the site, at its root."""
LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*?\ssrc=\"((?:https?:)?//[^\"]+)")
STYLED = re.compile(
    r"<link\b(?=[^>]*rel=\"(?:stylesheet|preconnect|icon|preload)\")[^>]*?href=\"((?:https?:)?//[^\"]+)"
)
LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from beside docs/."""
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are on the site."""
    place = page.file.src_uri
    folder = "" if place in BESIDE else posixpath.join("docs", posixpath.dirname(place))

    def at_site(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        inside = posixpath.relpath(path, "docs") if path.startswith("docs/") else path
        if path.startswith("docs/") or path in BESIDE:
            return f"[{text}]({posixpath.relpath(inside, posixpath.dirname(place) or '.')}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # mkdocs warns of it
        return text if path in text or not text else f"{text} (`{path}`)"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(at_site, part) for part in parts)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuses a page that makes a browser ask another host."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        for asked in asked_elsewhere(path.read_text(encoding="utf-8")):
            raise ValueError(f"{os.path.relpath(path, config.site_dir)} asks another host: {asked}")


def asked_elsewhere(html: str) -> list[str]:
    """Addresses of other hosts that a browser fetches by itself when it shows the page; links are not among them.

    >>> asked_elsewhere('<script src="https://a.example/x.js"></script> <a href="https://b.example">b</a>')
    ['https://a.example/x.js']
    """
    loads: list[str] = LOADED.findall(html)
    styles: list[str] = STYLED.findall(html)
    return [*loads, *styles]
