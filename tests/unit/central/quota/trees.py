"""Build trees of quotas of one resource, as tests write them, and their runtime in a unit that the test chooses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from central.quota.model import ROOT, Amounts, Quota, QuotaDialect, QuotaId
from central.quota.runtime import divide, sibling, sum_requests
from central.quota.tree import Tree, build


def quota(name: str, *, parent: str = ROOT, **options: object) -> Quota:
    made = Quota(id=QuotaId(name), dialect=QuotaDialect.KOORDINATOR, namespace="quotas", name=name, parent=QuotaId(parent))
    return replace(made, **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Of:
    """Represent a quota of one resource."""

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


def divide_down(
    tree: Tree, key: str, totals: Mapping[QuotaId, int], limited: Mapping[QuotaId, int], unit: int = 1
) -> dict[QuotaId, int]:
    """Divide a whole tree. Return the runtime by quota. `totals`: what the quotas of each group divide, by the group's name."""
    runtime: dict[QuotaId, int] = {}
    for group, members in tree.groups.items():
        quotas = [tree.quotas[member] for member in members if key in tree.quotas[member].max]
        divided = divide(
            runtime.get(group, totals.get(group, 0)), [sibling(one, key, limited.get(one.id, 0)) for one in quotas], unit=unit
        )
        runtime.update({QuotaId(name): amount for name, amount in divided.items()})
    return runtime


def runtimes(
    total: int, quotas: Iterable[Of], amounts: Mapping[str, int], key: str, scale: int = 1, unit: int = 1
) -> dict[str, int]:
    tree = tree_of(quotas, key, scale)
    limited = sum_requests(tree, key, {QuotaId(name): amount * scale for name, amount in amounts.items()}).limited
    return {str(name): amount for name, amount in divide_down(tree, key, {ROOT: total * scale}, limited, unit).items()}
