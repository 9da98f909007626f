"""The pages that `lockstep report` makes, read as a browser would."""

import html.parser
import json


class Page(html.parser.HTMLParser):
    """Elements of a page with their attributes and their text; it fails on tags that do not match."""

    VOID = {"meta", "link", "br", "img"}

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.open = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append({"tag": tag, "text": "", **dict(attributes)})
        if tag not in self.VOID:
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attributes):
        self.elements.append({"tag": tag, "text": "", **dict(attributes)})

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def find(self, tag, word=None):
        return [one for one in self.elements
                if one["tag"] == tag and (word is None or word in one.get("class", "").split())]

    def curves(self):
        """[[x, y, step, value], ...] of each metric that is drawn, by name."""
        return {curve["name"]: curve["points"] for chart in self.find("svg", "chart")
                for curve in json.loads(chart["data-curves"])}
