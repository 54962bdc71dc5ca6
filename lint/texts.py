"""Read the texts of a Python file that people read: docstrings, comments, names and messages.

A text is a value, so that `lint.words` can check all of them and `lint.sample` can show some of them.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

_MESSAGE_WORDS: Final = 3  # minimum words of a string that counts as a message


class Kind(StrEnum):
    DOCSTRING = "docstring"
    COMMENT = "comment"  # lines of comments below one another are one comment
    NAME = "name"  # the name of a class or function
    MESSAGE = "message"  # any other string of several words; `{}` stands for a value


class Text(NamedTuple):
    kind: Kind
    line: int
    text: str


def read_texts(source: str) -> Iterator[Text]:
    """Yield the texts of a Python file. Raise SyntaxError if it is not Python."""
    tree = ast.parse(source)
    docstrings = {id(constant): constant for node in ast.walk(tree) if (constant := _find_docstring(node)) is not None}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("__"):
                yield Text(Kind.NAME, node.lineno, node.name)
        elif id(node) in docstrings:
            constant = docstrings[id(node)]
            yield Text(Kind.DOCSTRING, constant.lineno, str(constant.value).strip())
        elif (message := _read_string(node)) and id(node) not in parts and len(message.split()) >= _MESSAGE_WORDS:
            yield Text(Kind.MESSAGE, getattr(node, "lineno", 1), message)
    yield from _read_comments(source)


def _find_docstring(node: ast.AST) -> ast.Constant | None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
        return None
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first.value
    return None


def _read_string(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


def _read_comments(source: str) -> Iterator[Text]:
    first, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text, line = token.string.lstrip("#: "), token.start[0]
        if not token.line.lstrip().startswith("#"):
            yield Text(Kind.COMMENT, line, text)
        elif line == last + 1:
            lines.append(text)
            last = line
        else:
            if lines:
                yield Text(Kind.COMMENT, first, "\n".join(lines))
            first = last = line
            lines = [text]
    if lines:
        yield Text(Kind.COMMENT, first, "\n".join(lines))
