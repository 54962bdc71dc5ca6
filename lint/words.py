"""Find words in code and docs that a reader whose second language is English cannot understand at once.

    python -m lint.words [FILE ...]

Reads the tracked files; in code the parts of names too (`check_nobody`, `LadingNobodyLeads`), but not in docs, which cite names
of tests, and not the data of tests. It also finds docstrings and comments that begin in the middle of a sentence, and names for
which the glossary has another word; in tests, only names of tests. Prints each place with what to write instead; exit status 1
where there is one.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lint.texts import Kind, read_texts
from lint.tracked import ROOT, list_tracked

# A word, as a regular expression, and what to write instead.
WORDS: Final = {
    r"nobody(?:'s)?": "no one; or name it: no pod, no node, no process",
    r"somebody(?:'s)?": "someone; or name it: a person, another pod, another process",
    r"whoever": "name it: the caller, the pod that, a process that",
    r"whomever": "name it",
    r"of ours": "name it: of Lading, of this project",
    r"such a one": "name it",
    r"(?:is|are) to be had": "is available",
    r"(?:is|are|was|were) told of": "learns of, receives, is shown",
    r"minds? (?:nobody|no one)": "is not affected",
    r"can not": "cannot",
    r"hearsay": "name where it comes from",
    r"fell ill|unwell": "became unhealthy, unhealthy",
}
# File → word → why it has the word; an empty word stands for all of them.
EXCEPTIONS: Final[dict[str, dict[str, str]]] = {
    "lint/words.py": {"": "the list itself"},
    "tests/unit/lint/test_words.py": {"": "examples of words of the list"},
    "simnode/images.py": {"nobody": "the user of that name in /etc/passwd"},
}
# A part of a name, as a regular expression, and what to write instead.
NAMES: Final = {
    r"look(?:s|ed)?(?!__up)": "scan, check, read or search",
    r"said|told": "text, message or content; reported, notified",
    r"seen": "observed, cached; reading",
    r"gone": "deleted, removed, missing or ended",
    r"apart": "distance, separate",
    r"woken": "requeued",
}
# Name → why it has the word.
NAME_EXCEPTIONS: Final = {
    "said": "a key of the JSON of `kubectl lading` and of central's answer",
    "healthy_said": "a key of the JSON of `kubectl lading pod`",
    "not_looked_at": "a key of the JSON of `kubectl lading why`",
    "pods_apart": "the check pods-apart of `kubectl lading status` has the function's name",
    "POD_WOKEN": "the event pod.woken of the log",
    "GoneError": "the status 410 Gone of the API server",
}
# Files whose names are not read → why.
NAME_FILES: Final = {
    "shares/": "its states are being rewritten",
    "runtimeproxy/": "its relay is being rewritten",
    "bench/isolation": "it follows shares/",
    "bench/virtual_card.py": "it has names of shares/",
    "bench/links.py": "`apart` is a key of the stored figures",
    "tests/shares/": "they follow shares/",
    "tests/unit/shares/": "they follow shares/",
    "tests/peers/": "they follow runtimeproxy/",
    "tests/unit/runtimeproxy/": "they follow runtimeproxy/",
}
READ: Final = frozenset(
    {".py", ".md", ".sh", ".js", ".json", ".html", ".css", ".yaml", ".toml", ".service", ".socket", ".proto"}
)
# A reader of "of the node" alone asks what is of the node.
_START: Final = re.compile(r"(?:of|by|what|as|that|which|who|whose|its|for which|in which)\b", re.IGNORECASE)
# Between two words there may be the end of a line, and the sign of a comment.
_WORD: Final = re.compile(r"\b(?:" + "|".join(f"({word})" for word in WORDS).replace(" ", r"[\s#/*]+") + r")\b", re.IGNORECASE)
_NAME: Final = re.compile("|".join(f"(_(?:{part})_)" for part in NAMES))
_NAME_JOINT: Final = re.compile(r"_|(?<=[a-z0-9])(?=[A-Z])")


class Hit(NamedTuple):
    file: str
    line: int
    word: str
    instead: str


def find_words(file: str, text: str) -> Iterator[Hit]:
    """Yield the words of the list in the text of this file."""
    allowed = EXCEPTIONS.get(file, {})
    if file.startswith("tests/"):
        text = _without_data(text)
    if not file.endswith(".md"):
        text = _NAME_JOINT.sub(" ", text)
    for found in _WORD.finditer(text):
        word = " ".join(re.split(r"[\s#/*]+", found[0].lower()))
        if "" not in allowed and word not in allowed:
            yield Hit(file, text.count("\n", 0, found.start()) + 1, word, list(WORDS.values())[(found.lastindex or 1) - 1])


def find_starts(file: str, text: str) -> Iterator[Hit]:
    """Yield the docstrings and comments of this Python file that begin with a preposition or a relative pronoun."""
    for kind, line, words in read_texts(text):
        if kind in (Kind.DOCSTRING, Kind.COMMENT) and (found := _START.match(words)):
            yield Hit(file, line, f"{kind} begins with {found[0]}", "begin with a verb, or with the noun that it is about")


def find_names(file: str, source: str) -> Iterator[Hit]:
    """Yield the names that this Python file defines and for which the glossary has another word."""
    if file.startswith(tuple(NAME_FILES)):
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case _:
                continue
        if name in NAME_EXCEPTIONS or (file.startswith("tests/") and not name.startswith("test_")):
            continue
        if match := _NAME.search(f"_{_NAME_JOINT.sub('__', name).lower()}_"):
            yield Hit(file, node.lineno, name, list(NAMES.values())[(match.lastindex or 1) - 1])


def _without_data(source: str) -> str:
    """Return the Python source with its lines, but of the words only those in names, docstrings and comments."""
    lines = [""] * (source.count("\n") + 1)
    for kind, line, text in read_texts(source):
        for number, words in enumerate(text.splitlines() if kind is not Kind.MESSAGE else (), line - 1):
            lines[number] += f" {words}"
    return "\n".join(lines)


def read_tracked() -> list[str]:
    """Return the files that git tracks and this check reads."""
    return [
        name for name in list_tracked() if Path(name).suffix in READ and (name.endswith(".py") or not name.startswith("tests/"))
    ]


def main(files: Iterable[str]) -> None:
    texts = {name: (ROOT / name).read_text() for name in files or read_tracked()}
    hits = [hit for name, text in texts.items() for hit in find_words(name, text)]
    hits += [
        hit
        for name, text in texts.items()
        if name.endswith(".py")
        for find in (find_starts, find_names)
        for hit in find(name, text)
    ]
    for hit in hits:
        print(f'{hit.file}:{hit.line}: "{hit.word}": {hit.instead}', file=sys.stderr)
    sys.exit(1 if hits else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
