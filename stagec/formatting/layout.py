"""Words to lines: `format_text`.

- Two spaces for each open brace; four more where a statement goes on. Line breaks inside a statement stay where they are.
- A statement, a clause and an item to a line. A block stays on one line if it was, and holds one statement, or settings.
- One space between words, none inside parentheses and brackets. Settings on one line have commas between them.
- At most one blank line; one around items of several lines; none at the ends of a block.
- Comments stay. Those behind lines that follow each other stand one below the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stagec.formatting.words import END, Comment, SpacedToken, words_of
from stagec.frontend.parser import parse

INDENT = 2
CONTINUED = 4
BEFORE_COMMENT = 2

OPENING = ("LPAR", "_CALL", "LSQB", "_INDEX")
CLOSING = ("RPAR", "RSQB")
TOUCHING = (*CLOSING, "COMMA", "COLON", "DOT", "_CALL", "_INDEX")
"""No space before these."""
JOINED = ("COMMA", "COLON", "DOT", "LBRACE", "_CALL", "_INDEX")
"""No line break before these: a comment there moves behind them."""
OPERANDS = ("NAME", "PASS_NAME", "INT", "FLOAT", "BYTES", "STRING", "TRUE", "FALSE", *CLOSING)
"""A minus after one of these is a difference, else a sign."""


def format_text(text: str, file: str = "<text>") -> str:
    """The text as it should be written. Raises `CompileError` if it does not parse."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    program = parse(text, file)
    written = Layout(words_of(text, program)).run()
    assert parse(written, file) == program, "formatting changes what a text says"
    return written


@dataclass
class Line:
    """A line in the making."""

    indent: int
    text: str = ""
    comment: str = ""
    blank_before: bool = False
    item: bool = False
    """Whether an item, or the comment ahead of one, begins here."""


@dataclass
class Layout:
    words: list[SpacedToken]
    lines: list[Line] = field(default_factory=list)
    open_blocks: list[bool] = field(default_factory=list)
    """For each of the braces around the place: whether their contents are on lines of their own."""
    brackets: int = 0
    waiting: list[Comment] = field(default_factory=list)
    """Comments that a word has pushed behind itself."""
    after_minus: bool = False
    """Whether the last word was a sign."""

    @property
    def depth(self) -> int:
        return INDENT * sum(self.open_blocks)

    def run(self) -> str:
        for number, word in enumerate(self.words):
            self.place(number, word)
        separate_items(self.lines)
        align_comments(self.lines)
        return "".join(map(written, self.lines))

    def place(self, number: int, word: SpacedToken) -> None:
        """Put a word where it belongs."""
        if word.type == END:
            self.open_blocks.clear()
            self.comments(word.comments, self.depth)
            return
        if word.type == "COMMA" and self.is_idle_comma(number):
            self.waiting += word.comments
            return
        if word.type == "RBRACE":
            self.close(word)
            return
        comments = [*self.waiting, *word.comments]
        self.waiting.clear()
        if word.type in JOINED and self.lines:
            self.waiting += comments
            self.join(word)
        elif self.begins_line(word):
            self.begin(word, comments)
        elif comments or word.newline:
            self.comments(comments, self.depth + CONTINUED)
            closes = word.type in CLOSING
            self.lines.append(Line(self.depth + (0 if closes else CONTINUED), word.text))
        else:
            if word.starts == "setting":
                self.separate(number)
            self.join(word)
        self.note(number, word)

    def note(self, number: int, word: SpacedToken) -> None:
        """What the word opens and closes."""
        previous = self.words[number - 1].type if number else ""
        self.after_minus = word.type == "MINUS" and previous not in OPERANDS
        if word.type in OPENING:
            self.brackets += 1
        elif word.type in CLOSING:
            self.brackets -= 1
        elif word.type == "LBRACE":
            self.open_blocks.append(self.is_spread(number))

    def begin(self, word: SpacedToken, comments: list[Comment]) -> None:
        """A line for an item or a statement, below the comments on it."""
        first = len(self.lines)
        self.comments(comments, self.depth)
        blank = word.blank and not self.is_block_start()
        self.lines.append(Line(self.depth, word.text, blank_before=blank))
        if word.starts == "item":
            at = len(self.lines) - 1
            while at > first and not self.lines[at].blank_before:
                at -= 1
            self.lines[at].item = True

    def begins_line(self, word: SpacedToken) -> bool:
        if not self.lines:
            return True
        if word.starts in ("statement", "setting"):
            return self.open_blocks[-1]
        return word.starts == "item"

    def is_block_start(self) -> bool:
        return bool(self.lines) and self.lines[-1].text.endswith("{")

    def is_idle_comma(self, number: int) -> bool:
        """Between settings on one line: it is written anew. On lines of their own they keep the commas they have."""
        following = self.words[number + 1]
        separates = following.starts == "setting" or following.type == "RBRACE"
        return separates and not self.brackets and not self.open_blocks[-1]

    def separate(self, number: int) -> None:
        """A comma before a setting that follows another on its line."""
        if self.words[number - 1].type != "LBRACE":
            self.lines[-1].text += ","

    def is_spread(self, number: int) -> bool:
        """Whether a block has lines of its own: it had before, or has several statements."""
        if self.waiting:
            return True
        nesting, statements = 0, 0
        for word in self.words[number + 1 :]:
            if word.type == "RBRACE" and not nesting:
                return bool(word.comments) or word.newline or statements > 1
            nesting += (word.type == "LBRACE") - (word.type == "RBRACE")
            if word.newline or word.comments:
                return True
            statements += word.starts == "statement" and not nesting
        return False

    def close(self, word: SpacedToken) -> None:
        """A closing brace, on a line of its own where its block has lines."""
        comments = [*self.waiting, *word.comments]
        self.waiting.clear()
        if not self.open_blocks.pop():
            empty = self.lines[-1].text.endswith("{")
            self.lines[-1].text += "}" if empty else " }"
            return
        self.comments(comments, self.depth + INDENT)
        if self.is_block_start() and not self.lines[-1].comment:
            self.lines[-1].text += "}"
            return
        self.lines.append(Line(self.depth, "}"))

    def join(self, word: SpacedToken) -> None:
        """Add a word to the line."""
        line = self.lines[-1]
        touching = word.type in TOUCHING or self.after_minus
        touching |= line.text.endswith(("(", "[", ".")) and self.brackets_or_path(line.text)
        if line.comment:
            # The comment behind a word that a brace or a comma joins stays behind the line.
            touching = touching or not line.text
        line.text += word.text if touching else f" {word.text}"

    def brackets_or_path(self, text: str) -> bool:
        return text[-1] == "." or self.brackets > 0

    def comments(self, comments: Sequence[Comment], indent: int) -> None:
        """The comments before a word: behind the line, or on lines of their own."""
        for each in comments:
            last = self.lines[-1] if self.lines else None
            if each.behind and last is not None and not last.comment and last.text[:1] != "#":
                last.comment = each.text
                continue
            blank = each.blank_before and last is not None and not self.is_block_start()
            self.lines.append(Line(indent, each.text, blank_before=blank))


def separate_items(lines: list[Line]) -> None:
    """A blank line before and after each item of several lines."""
    begins = [i for i, line in enumerate(lines) if line.item]
    for i, start in enumerate(begins[1:], 1):
        end = begins[i + 1] if i + 1 < len(begins) else len(lines)
        before = begins[i - 1]
        if is_tall(lines[before:start]) or is_tall(lines[start:end]):
            lines[start].blank_before = True


def is_tall(lines: list[Line]) -> bool:
    """Whether an item has several lines, besides comments."""
    return any(line.text == "}" and not line.indent for line in lines)


def align_comments(lines: list[Line]) -> None:
    """Comments behind the lines of a paragraph: of one depth, with no blank line and no other comment between them."""
    start = 0
    while start < len(lines):
        end = start + 1
        while end < len(lines) and continues(lines[start], lines[end]):
            end += 1
        paragraph = [line for line in lines[start:end] if line.comment]
        width = max((len(line.text) for line in paragraph), default=0)
        for line in paragraph:
            line.text = line.text.ljust(width)
        start = end


def continues(first: Line, line: Line) -> bool:
    """Whether a line belongs to the paragraph that begins with `first`."""
    told = line.text.startswith("#") or first.text.startswith("#")
    return line.indent == first.indent and not line.blank_before and not told


def written(line: Line) -> str:
    blank = "\n" if line.blank_before else ""
    behind = " " * BEFORE_COMMENT + line.comment if line.comment else ""
    return f"{blank}{' ' * line.indent}{line.text}{behind}".rstrip() + "\n"
