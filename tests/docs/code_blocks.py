"""Makes a source file of the blocks of C++ in README and docs/, so that a block that does not compile fails the build.

    code_blocks.py ROOT_OF_THE_REPOSITORY OUTPUT

A block that stands in another source file, apart from comments and spaces, is compiled there. All others are in
code_blocks.cpp.in. "…" in a block stands for lines that are left out. The Chinese guides (*.zh.md) have the blocks of the
English ones: tests/python/sources/docs.py compares them.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
OUTPUT = pathlib.Path(sys.argv[2])
TEMPLATE = ROOT / "tests/docs/code_blocks.cpp.in"
PLACE = re.compile(r"^ *@(\S+) (\d+)@$", re.MULTILINE)


def essence(code):
    return "".join(re.sub(r"//[^\n]*", "", code).split())


def blocks():
    pages = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if not path.match("*.zh.md"))]
    return {(str(page.relative_to(ROOT)), number): block for page in pages
            for number, block in enumerate(re.findall(r"```cpp\n(.*?)```", page.read_text(), re.DOTALL))}


def main():
    sources = [essence(path.read_text()) for folder in ("bench", "examples", "lockstep", "models", "tests", "tools")
               for kind in ("*.cpp", "*.h") for path in (ROOT / folder).rglob(kind)]
    found = blocks()
    template = TEMPLATE.read_text()
    placed = {(page, int(number)) for page, number in PLACE.findall(template)}
    missing = sorted(placed - found.keys())
    for place, block in found.items():
        parts = [part for part in map(essence, block.split("…")) if part]
        if place not in placed and not all(any(part in source for source in sources) for part in parts):
            missing.append(place)
    if missing:
        sys.exit(f"{TEMPLATE.relative_to(ROOT)}: " + ", ".join(f"{page} {number}" for page, number in missing)
                 + ": add the block, or take out one that is gone")

    def fill(match):
        block = found[match[1], int(match[2])]
        block = re.sub(r"^ *…$", "", block, flags=re.MULTILINE).replace("…", "elided")
        return f'#line 1 "{match[1]}, block {match[2]}"\n{block}'

    OUTPUT.write_text(PLACE.sub(fill, template))


main()
