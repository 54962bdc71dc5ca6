"""Check a value by a structural OpenAPI v3 schema, as an API server checks custom resources.

Only the keywords of Lading's CRDs are implemented; any other keyword raises KeyError. A property that the schema does not have
is an error too, because an API server would drop it silently.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}
_SAY_NOTHING: Final = {"type", "description", "format", "x-kubernetes-map-type"}


def find_errors(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yield `path: keyword` for each violated rule of the schema."""
    fits = isinstance(value, _TYPES[schema["type"]]) and (schema["type"] == "boolean") == isinstance(value, bool)
    if not fits:
        yield f"{path}: type"
        return
    for keyword in schema.keys() - _SAY_NOTHING:
        yield from _RULES[keyword](schema[keyword], value, path)
    if isinstance(value, dict) and "properties" not in schema:
        yield from (f"{path}.{name}: unknown" for name in value)


def _properties(properties: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, item in value.items():
        if name in properties:
            yield from find_errors(properties[name], item, f"{path}.{name}")
        else:
            yield f"{path}.{name}: unknown"


def _items(schema: Mapping[str, Any], value: list[Any], path: str) -> Iterator[str]:
    for place, item in enumerate(value):
        yield from find_errors(schema, item, f"{path}[{place}]")


def _required(names: list[str], value: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}.{name}: required" for name in names if name not in value)


def _rule(keyword: str, holds: Any) -> Any:
    return lambda bound, value, path: iter(() if holds(bound, value) else (f"{path}: {keyword}",))


_RULES: Final[dict[str, Any]] = {
    "properties": _properties,
    "items": _items,
    "required": _required,
    "maxItems": _rule("maxItems", lambda bound, value: len(value) <= bound),
    "maxLength": _rule("maxLength", lambda bound, value: len(value) <= bound),
    "pattern": _rule("pattern", lambda bound, value: re.search(bound, value) is not None),
    "minimum": _rule("minimum", lambda bound, value: value >= bound),
    "maximum": _rule("maximum", lambda bound, value: value <= bound),
}
