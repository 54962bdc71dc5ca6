"""Check the examples of docs/quotas.md."""

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from central.quota import model, objects
from central.quota.model import KOORDINATOR_PREFIX, Owner, QuotaDialect, owner_of
from central.quota.objects import ElasticQuota, read_quota
from central.quota.tree import Tree, build
from central.request.model import DeviceRequest
from central.request.parse import parse_request
from central.request.pod import Pod
from lading.vocabulary import RESOURCE_GPU
from tests.docs import ROOT, section
from tests.unit.central.quota.trees import Of, runtimes

PAGE = "quotas.md"


def written() -> Iterator[dict[str, Any]]:
    for block in re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / PAGE).read_text(), re.MULTILINE | re.DOTALL):
        yield from yaml.safe_load_all(textwrap.dedent(block))


def tree() -> Tree:
    return build(
        read_quota(QuotaDialect(one["apiVersion"].split("/")[0]), msgspec.convert(one, ElasticQuota))
        for one in written()
        if one["kind"] == "ElasticQuota"
    )


def test_the_quotas_of_the_page_make_a_tree() -> None:
    result = tree()
    assert not result.problems
    assert not any(quota.uncounted for quota in result.quotas.values())
    assert result.paths.keys() == {"vision", "speech", "research", "robots", "vision-dev/quota"}
    assert result.quotas_of(Owner("vision-dev")) == ("vision", "vision-dev/quota")
    assert not result.quotas[result.by_namespace["vision-prod"]].is_parent


def test_the_pod_of_the_page_is_in_its_quota() -> None:
    (pod,) = [msgspec.convert(one, Pod) for one in written() if one["kind"] == "Pod"]
    assert isinstance(parse_request(pod), DeviceRequest)
    assert tree().quotas_of(owner_of("default", pod.metadata.labels)) == ("speech",)


def test_the_keys_of_the_page_are_those_that_are_read() -> None:
    constants = {value for module in (model, objects) for value in vars(module).values() if isinstance(value, str)}
    constants -= {*objects.WRITTEN}
    read = {value.removeprefix(KOORDINATOR_PREFIX) for value in constants if value.startswith(KOORDINATOR_PREFIX)} - {""}
    rows = re.findall(r"^\| (`.*?) \| (?:quota|root|pod),", section(PAGE, "### Keys"), re.MULTILINE)
    shown = {key for row in rows for key in re.findall(r"`([a-z-]+)`", row)}
    assert shown == read


def test_the_numbers_of_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) and (\d+) \|$", section(PAGE, "## What a quota may use now"), re.MULTILINE)
    assert len(rows) == 3
    for amount, first, second in rows:
        two = [Of(name, 8, 16) for name in "ab"]
        assert runtimes(16, two, {"a": 16, "b": int(amount)}, RESOURCE_GPU) == {"a": int(first), "b": int(second)}
