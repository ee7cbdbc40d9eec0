"""A page as a tree: what it is, and what it says."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """A page's elements, each with its attributes and all the text in it. Refuses what is not well formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.texts: list[list[str]] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        self.texts.append([])
        if tag not in VOID:
            self._open.append(len(self.found) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.found[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for index in self._open:
            self.texts[index].append(data)

    def elements(self, tag: str, **attributes: str) -> list[tuple[dict[str, str], str]]:
        """Attributes and text of the elements that have those attributes; `class_` needs one class of theirs."""
        class_ = attributes.pop("class_", "")
        return [
            (held, " ".join("".join(text).split()))
            for (name, held), text in zip(self.found, self.texts, strict=True)
            if name == tag
            and all(held.get(key) == value for key, value in attributes.items())
            and (not class_ or class_ in held.get("class", "").split())
        ]

    def text(self, tag: str, **attributes: str) -> str:
        """The text of the only such element."""
        ((_, text),) = self.elements(tag, **attributes)
        return text

    @property
    def tags(self) -> list[tuple[str, tuple[str, ...]]]:
        """Every tag with the names of its attributes: what the page is, without what it says."""
        return [(tag, tuple(attributes)) for tag, attributes in self.found]
