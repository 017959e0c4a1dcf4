#!/usr/bin/env python3
"""Checks links without a network: of all Markdown files, and of the book's HTML pages.

A relative link must name a file of the repository or of the book, and its fragment a heading or an
id in that file. Every page of docs/src must be in SUMMARY.md. Links to other hosts are not checked.

usage: scripts/check-links.py [folder of the built book]
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs" / "src"

FENCE = re.compile(r"^ {0,3}(```|~~~).*?^ {0,3}\1[ \t]*$", re.M | re.S)
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
TEXT, TARGET = r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]", r"[^()\s>]*(?:\([^()]*\)[^()\s>]*)*"
LINK = re.compile(TEXT + r"\(\s*<?(" + TARGET + r")>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+(\S+)", re.M)


def without_code(text: str) -> str:
    return CODE.sub("", FENCE.sub("", text))


def headings(path: Path) -> set[str]:
    """The anchors that renderers give the headings of a Markdown file."""
    anchors: set[str] = set()
    for title in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", FENCE.sub("", path.read_text()), re.M):
        title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        anchor, repeat = slug, 0
        while anchor in anchors:
            repeat += 1
            anchor = f"{slug}-{repeat}"
        anchors.add(anchor)
    return anchors


def external(link: str) -> bool:
    parts = urlsplit(link)
    return bool(parts.scheme or parts.netloc)


def markdown_faults() -> tuple[int, list[str]]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout.decode()
    # The list still contains a deleted file until its deletion is committed.
    files = [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]
    faults, count = [], 0
    for path in files:
        text = without_code(path.read_text())
        for link in LINK.findall(text) + REFERENCE.findall(text):
            if not link or external(link):
                continue
            count += 1
            name = f"{path.relative_to(ROOT)}: {link}"
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                faults.append(f"{name}: no such file")
            elif BOOK in path.parents and BOOK not in target.parents:
                faults.append(f"{name}: outside the book, where its readers cannot follow")
            elif parts.fragment and target.suffix == ".md":
                if parts.fragment not in headings(target):
                    faults.append(f"{name}: no such heading")
    summary = without_code((BOOK / "SUMMARY.md").read_text())
    pages = {(BOOK / link).resolve() for link in LINK.findall(summary)}
    for path in files:
        if BOOK in path.parents and path.name != "SUMMARY.md" and path not in pages:
            faults.append(f"{path.relative_to(ROOT)}: not in SUMMARY.md")
    return count, faults


class Page(HTMLParser):
    """Ids and links of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif name in ("href", "src") and value and tag != "base":
                self.links.append(value)


def site_faults(site: Path) -> tuple[int, list[str]]:
    # The error page links to the root of a server; rustdoc generates the crates' pages.
    paths = [
        path
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html" and path.relative_to(site).parts[0] != "api"
    ]
    pages = {path: Page(path) for path in paths}
    faults, count = [], 0
    for path, page in pages.items():
        for link in page.links:
            if external(link):
                continue
            count += 1
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            name = f"{path.relative_to(site)}: {link}"
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                faults.append(f"{name}: no such file")
            elif parts.fragment and target in pages:
                if unquote(parts.fragment) not in pages[target].ids:
                    faults.append(f"{name}: no such id")
    return count, faults


def main() -> int:
    count, faults = markdown_faults()
    print(f"{count} links in Markdown files")
    if len(sys.argv) > 1:
        site = Path(sys.argv[1]).resolve()
        count, more = site_faults(site)
        print(f"{count} links in {site.relative_to(ROOT) if ROOT in site.parents else site}")
        faults += more
        if count == 0:
            faults.append(f"{site}: no links, is the book there?")
    for fault in faults:
        print(fault, file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
