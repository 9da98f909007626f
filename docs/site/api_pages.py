"""The overview of the C++ API, and the check that public symbols are documented, from Doxygen's XML.

    api_pages.py XML_FOLDER --page=FILE        writes the overview: headers, their classes and functions
    api_pages.py XML_FOLDER --check            fails on an undocumented symbol

A symbol: a class, struct, enum, type alias or function. Constructors, operators, overrides and data members need no
comment if their names say it.
"""

import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree as xml


def text_of(node):
    return " ".join("".join(node.itertext()).split()) if node is not None else ""


def is_documented(node):
    return bool(text_of(node.find("briefdescription")) or text_of(node.find("detaileddescription")))


def header_of(node):
    location = node.find("location")
    return location.get("declfile", location.get("file")) if location is not None else ""


class Symbol:
    def __init__(self, kind, name, node):
        self.kind = kind
        self.name = name
        self.header = header_of(node)
        self.brief = text_of(node.find("briefdescription"))
        self.is_documented = is_documented(node)
        self.reference = node.get("id")


def needs_comment(member, owner):
    """Whether a member is one of those that the check is about."""
    name = member.findtext("name")
    if member.get("prot") == "private" or member.get("kind") not in ("function", "enum", "typedef"):
        return False
    if member.find("reimplements") is not None or name.startswith(("operator", "~")):
        return False
    is_constructor = name == owner.split("::")[-1].split("<")[0]
    # What iterators of the standard library are called.
    is_standard = name in ("value_type", "difference_type", "iterator_category", "pointer", "reference", "begin", "end")
    return not is_constructor and not is_standard


def symbols_in(folder):
    symbols = []
    for file in sorted(folder.glob("*.xml")):
        for compound in xml.parse(file).getroot().findall("compounddef"):
            kind = compound.get("kind")
            if kind not in ("class", "struct", "namespace") or compound.get("prot") == "private":
                continue
            name = compound.findtext("compoundname")
            if kind != "namespace":
                symbols.append(Symbol(kind, name, compound))
            for member in compound.iter("memberdef"):
                if needs_comment(member, name):
                    symbols.append(Symbol(member.get("kind"), f"{name}::{member.findtext('name')}", member))
    # Specializations of templates belong to the template.
    return [symbol for symbol in symbols if symbol.name.startswith("lockstep") and "<" not in symbol.name]


def page_of(symbol):
    if symbol.kind in ("class", "struct"):
        return f"{symbol.reference}.html"
    page, _, anchor = symbol.reference.rpartition("_1")
    return f"{page}.html#{anchor}"


def write_page(symbols, page, html):
    lines = ["# C++ API", "", "All public headers, with their classes and functions. "
             "Each name leads to its reference: parameters, threads, lifetime and errors.", ""]
    headers = {}
    classes = {symbol.name for symbol in symbols if symbol.kind in ("class", "struct")}
    for symbol in symbols:
        owner = symbol.name.rsplit("::", 1)[0]
        if owner not in classes:
            headers.setdefault(symbol.header, {}).setdefault(symbol.name, symbol)
    for header in sorted(headers):
        lines += [f"## `{header}`", "", "| | |", "|---|---|"]
        for name, symbol in sorted(headers[header].items()):
            shown = name.removeprefix("lockstep::") + ("()" if symbol.kind == "function" else "")
            brief = re.sub(r"([|*_\[\]])", r"\\\1", symbol.brief.replace("<", "&lt;"))
            # Doxygen has no page of some templates.
            link = page_of(symbol)
            if (html / link.partition("#")[0]).exists():
                shown = f'<a href="../api/{link}"><code>{shown}</code></a>'
            else:
                shown = f"`{shown}`"
            lines.append(f"| {shown} | {brief} |")
        lines.append("")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines))


def check(symbols):
    by_name = {}
    for symbol in symbols:
        by_name.setdefault(symbol.name, []).append(symbol)
    # Of several overloads one comment is enough.
    missing = {name for name, group in by_name.items() if not any(symbol.is_documented for symbol in group)}
    for name in sorted(missing):
        print(f"undocumented: {name} ({by_name[name][0].header}); give it a comment")
    return not missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    symbols = symbols_in(options.folder)
    if options.page:
        write_page(symbols, options.page, options.folder.parent / "html")
    if options.check:
        sys.exit(not check(symbols))


main()
