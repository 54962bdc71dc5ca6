"""Trees of quotas of one resource, as tests write them, and their runtime in a unit of the test's choice."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from central.quota.model import ROOT, Amounts, Dialect, Quota, QuotaId
from central.quota.runtime import ask_up, divide_down
from central.quota.tree import Tree, build


def quota(name: str, *, parent: str = ROOT, **words: object) -> Quota:
    made = Quota(id=QuotaId(name), dialect=Dialect.KOORDINATOR, namespace="quotas", name=name, parent=QuotaId(parent))
    return replace(made, **words)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Of:
    """A quota of one resource."""

    name: str
    min: int = 0
    max: int = 10_000
    weight: int = 0
    parent: str = ROOT
    lends: bool = True

    def quota(self, key: str, scale: int, parents: Iterable[str]) -> Quota:
        def amount(number: int) -> Amounts:
            return {key: number * scale} if number else {}

        return quota(
            self.name,
            parent=self.parent,
            min=amount(self.min),
            max={key: self.max * scale},
            weights=amount(self.weight),
            lends=self.lends,
            is_parent=self.name in parents,
        )


def tree_of(quotas: Iterable[Of], key: str, scale: int = 1) -> Tree:
    quotas = list(quotas)
    tree = build(one.quota(key, scale, {each.parent for each in quotas}) for one in quotas)
    assert not tree.problems
    return tree


def runtimes(
    total: int, quotas: Iterable[Of], asks: Mapping[str, int], key: str, scale: int = 1, unit: int = 1
) -> dict[str, int]:
    tree = tree_of(quotas, key, scale)
    limited = ask_up(tree, key, {QuotaId(name): amount * scale for name, amount in asks.items()}).limited
    return {str(name): amount for name, amount in divide_down(tree, key, {ROOT: total * scale}, limited, unit).items()}
