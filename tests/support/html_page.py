"""A page of HTML, for tests that look at one."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """What a test asks of a document: elements with their attributes, and the text below those with an id."""

    def __init__(self, html: str):
        super().__init__()
        self.elements, self.texts, self.open = [], {}, []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if tag not in ("meta", "br", "img", "link", "input"):
            self.open.append((tag, attributes.get("id")))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, name in self.open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data

    def of(self, tag: str, name: str = "") -> list[dict]:
        return [attributes for found, attributes in self.elements
                if found == tag and (not name or name in (attributes.get("class") or "").split())]
