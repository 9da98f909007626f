"""Fails if a page of the built site links to a file or an anchor that is not there.

    check_links.py FOLDER_OF_THE_SITE
"""

import html.parser
import pathlib
import sys
import urllib.parse

SITE = pathlib.Path(sys.argv[1]).resolve()


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links = []
        self.anchors = {""}
        self.feed(path.read_text(errors="replace"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        for name in ("id", "name"):
            if values.get(name):
                self.anchors.add(values[name])
        link = values.get("href") if tag in ("a", "link") else values.get("src")
        if link:
            self.links.append(link)


def main():
    pages = {path: Page(path) for path in SITE.rglob("*.html")}
    broken = 0
    for path, page in sorted(pages.items()):
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc or link.startswith(("javascript:", "data:", "#__")):
                continue
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            if path.name == "404.html" and url.path.startswith("/"):
                continue
            if target.is_dir():
                target /= "index.html"
            anchor = urllib.parse.unquote(url.fragment)
            # Doxygen 1.9 names it where all nested classes are private.
            if anchor == "nested-classes":
                continue
            if not target.exists():
                reason = "there is no such file"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                reason = "there is no such anchor"
            else:
                continue
            broken += 1
            print(f"{path.relative_to(SITE)}: {link}: {reason}")
    print(f"{len(pages)} pages, {broken} broken links")
    sys.exit(broken > 0)


main()
