"""Puts the pages of the site into one folder, from which mkdocs builds it.

    assemble.py ROOT_OF_THE_REPOSITORY FOLDER_OF_THE_PAGES

Copies docs/, README, CONTRIBUTING and CHANGELOG. A link to a file of the repository that is no page becomes a link to
a page that shows the file. Links that lead nowhere stay as they are: mkdocs fails on them.
"""

import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve()
PAGES = pathlib.Path(sys.argv[2])
# What lies outside docs/ and is a page.
TOP_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\()([^)#\s]*)((?:#[^)\s]*)?\))")
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".cu": "cpp", ".py": "python", ".sh": "sh", ".cmake": "cmake", ".toml": "toml"}


def page_of(source):
    """Where the page or the asset of a file of the repository goes."""
    name = str(source.relative_to(ROOT))
    if name in TOP_PAGES:
        return PAGES / TOP_PAGES[name]
    if source.is_relative_to(ROOT / "docs"):
        return PAGES / source.relative_to(ROOT / "docs")
    return PAGES / "source" / (name + ".md")


def relative(target, page):
    up = len(page.parent.relative_to(PAGES).parts)
    return "../" * up + str(target.relative_to(PAGES))


def write_source(source):
    page = page_of(source)
    page.parent.mkdir(parents=True, exist_ok=True)
    name = source.relative_to(ROOT)
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if path.is_file())
        for path in files:
            write_source(path)
        body = "\n".join(f"- [{path.name}]({relative(page_of(path), page)})" for path in files)
    else:
        body = f"````{LANGUAGES.get(source.suffix, 'text')}\n{source.read_text()}\n````"
    page.write_text(f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n{body}\n")


def write_page(source):
    page = page_of(source)

    def follow(match):
        target = (source.parent / match[2]).resolve()
        if not match[2] or "://" in match[2] or not target.exists() or not target.is_relative_to(ROOT):
            return match[0]
        if target.suffix != ".md" and not target.is_relative_to(ROOT / "docs"):
            write_source(target)
        if target.is_dir() and target.is_relative_to(ROOT / "docs"):
            has_readme = (target / "README.md").exists()
            target = target / ("README.md" if has_readme else "all.md")
        return match[1] + relative(page_of(target), page) + match[3]

    page.parent.mkdir(parents=True, exist_ok=True)
    # Blocks of code have no links.
    parts = re.split(r"(^```.*?^```)", source.read_text(), flags=re.MULTILINE | re.DOTALL)
    page.write_text("".join(part if part.startswith("```") else LINK.sub(follow, part) for part in parts))


def write_decisions():
    """A page that lists them; not index.md, which would become the page of its section."""
    lines = ["# Decisions", "", "Why the code is as it is, one decision a page.", ""]
    for source in sorted((ROOT / "docs/decisions").glob("*.md")):
        title = source.read_text().splitlines()[0].lstrip("# ")
        lines.append(f"- [{title}]({source.name})")
    (PAGES / "decisions/all.md").write_text("\n".join(lines) + "\n")


def main():
    shutil.rmtree(PAGES, ignore_errors=True)
    for source in sorted((ROOT / "docs").rglob("*")):
        if source.is_dir() or source.is_relative_to(ROOT / "docs/site"):
            continue
        if source.suffix == ".md":
            write_page(source)
        elif source.suffix == ".html":
            # Its links are to pages as the repository shows them.
            page_of(source).parent.mkdir(parents=True, exist_ok=True)
            page_of(source).write_text(re.sub(r'(href="[^":]+)\.md(["#])', r"\1.html\2", source.read_text()))
        else:
            page_of(source).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, page_of(source))
    for name in TOP_PAGES:
        write_page(ROOT / name)
    write_decisions()


main()
