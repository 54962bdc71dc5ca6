"""Compare the CRD with the Structs that write and read it: they have the same fields, and the CRD accepts everything that a
node may send."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import inspect

from hooks.model.inventory import Inventory
from hooks.report.build import MAX_PROBLEMS, MAX_TEXT, build_status
from lading import nodedevices
from lading.nodedevices import (
    MOST_MIB,
    MOST_RAIL,
    ContainerUse,
    Gpu,
    Grant,
    GrantedGpu,
    MigInstance,
    NvLink,
    Partition,
    Past,
    Pf,
    Place,
    ShareBypass,
    Status,
    Summary,
    Use,
    Vf,
)
from lading.vocabulary import GpuUuid, PciAddress, PodUid
from tests.fakes.openapi import find_errors

CRD: dict[str, Any] = yaml.safe_load((Path(__file__).parents[3] / "deploy/crds/nodedevices.yaml").read_text())
(VERSION,) = CRD["spec"]["versions"]
STATUS: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]["properties"]["status"]

UUID, PEER = GpuUuid("GPU-00000001-4c61-6469-6e67-000000001efc"), GpuUuid("GPU-00000002-4c61-6469-6e67-000000003deb")
MIG = "MIG-00000051-4c61-5d69-8e67-0000000a0001"
PLACE = Place(path=("pci0000:15", "0000:15:01.0", "pci10000:e0", "10000:e0:06.0"), numa=1, socket=1)
FULL = Status(
    reporter="0.1.0",
    boot_id="00000000-0000-4000-8000-000000000001",
    driver="550.127.05",
    reconciled=True,
    isolations=("tokens", "none"),
    gpus=(
        Gpu(
            uuid=UUID,
            bdf=PciAddress("0000:1a:00.0"),
            model="NVIDIA H100 80GB HBM3",
            memory_mib=81559,
            reserved_mib=551,
            module_id=5,
            links=(NvLink(count=4, to=PEER), NvLink(count=18)),
            place=PLACE,
            mig_enabled=True,
            mig=(
                MigInstance(uuid=MIG, gpu_instance=1, compute_instance=2, memory_mib=9856, profile="1c.1g.10gb+me", slices=2),
                MigInstance(
                    uuid=f"MIG-{UUID}/1g.10gb@6", gpu_instance=6, compute_instance=3, memory_mib=1, profile="1g.10gb", slices=1
                ),
            ),
            unhealthy="GPU is lost",
            used_by="process 1",
            dirty="its compute mode is EXCLUSIVE_PROCESS",
        ),
    ),
    pfs=(
        Pf(
            bdf=PciAddress("10000:18:00.0"),
            driver="mlx5_core",
            netdev="ib0",
            ibdev="mlx5_0",
            link_layer="InfiniBand",
            place=PLACE,
            rail=MOST_RAIL,
            unhealthy="no port is active",
            vfs=(Vf(bdf=PciAddress("10000:18:00.2"), driver="vfio-pci", unhealthy="it is bound to vfio-pci"),),
        ),
    ),
    partitions=(Partition(id=3, modules=(1, 3)),),
    grants=(
        Grant(
            pod=PodUid("5f0d2c61"),
            container="train",
            namespace="default",
            pod_name="train-0",
            form="signed",
            gen=2**63 - 1,
            gpus=(
                GrantedGpu(
                    uuid=UUID,
                    mig_uuid="MIG-GPU-00000001-4c61-6469-6e67-000000001efc/1/0",
                    memory_mib=1,
                    core_percent=100,
                    core_limit_percent=100,
                    isolation="tokens",
                    pod_wide=True,
                    pod_memory_mib=2,
                    pod_core_percent=100,
                ),
            ),
            vfs=(PciAddress("0000:18:00.2"),),
        ),
    ),
    past=(
        Past(
            device=MIG,
            pod=PodUid("5f0d2c60"),
            container="train",
            since=1_700_000_000,
            until=1_700_000_600,
            namespace="default",
            pod_name="train-0",
            by="signed",
        ),
    ),
    use=(
        Use(
            uuid=UUID,
            memory_used_mib=512,
            busy_percent=100,
            containers=(ContainerUse(pod=PodUid("5f0d2c61"), container="train", memory_used_mib=512, mig_uuid=MIG),),
        ),
    ),
    used_at=1_700_000_000,
    share_bypasses=(
        ShareBypass(
            pod=PodUid("5f0d2c61"),
            uuid=UUID,
            container="train",
            namespace="default",
            pod_name="train-0",
            why="uses it past the share server",
        ),
    ),
    problems=("cannot read",),
    summary=Summary(gpus="0/1", models="H100", vfs="0/1", held="1 GPU", problems="GPU 0000:1a:00.0: lost"),
)


def errors(status: Status) -> list[str]:
    return list(find_errors(STATUS, msgspec.json.decode(msgspec.json.encode(status))))


def shape(kind: inspect.Type) -> Any:
    """Return how a type looks on the wire: `object`s by field, (items) of an array, else the name of a JSON type."""
    match kind:
        case inspect.StructType(fields=fields):
            return {f.encode_name: (shape(f.type), f.required) for f in fields}
        case inspect.VarTupleType(item_type=item):
            return [shape(item)]
        case inspect.UnionType(types=types):
            (one,) = (shape(t) for t in types if not isinstance(t, inspect.NoneType))
            return one
        case inspect.StrType():
            return "string"
        case inspect.IntType():
            return "integer"
        case inspect.BoolType():
            return "boolean"
    raise AssertionError(kind)


def schema_shape(schema: dict[str, Any]) -> Any:
    match schema["type"]:
        case "object":
            required = schema.get("required", [])
            return {name: (schema_shape(s), name in required) for name, s in schema["properties"].items()}
        case "array":
            return [schema_shape(schema["items"])]
        case scalar:
            return scalar


def is_bounded(schema: dict[str, Any]) -> bool:
    match schema["type"]:
        case "object":
            return all(map(is_bounded, schema["properties"].values()))
        case "array":
            return "maxItems" in schema and is_bounded(schema["items"])
        case "string":
            return "maxLength" in schema
        case "integer":
            return "minimum" in schema
    return True


def test_names_are_those_of_the_structs() -> None:
    spec, names = CRD["spec"], CRD["spec"]["names"]
    assert (spec["group"], VERSION["name"], names["kind"], names["plural"]) == (
        nodedevices.GROUP,
        nodedevices.VERSION,
        nodedevices.KIND,
        nodedevices.PLURAL,
    )
    assert CRD["metadata"]["name"] == f"{nodedevices.PLURAL}.{nodedevices.GROUP}"
    assert (spec["scope"], VERSION["subresources"]) == ("Cluster", {"status": {}})


def test_the_schema_has_the_fields_of_the_structs_and_no_others() -> None:
    assert schema_shape(STATUS) == shape(inspect.type_info(Status))


def test_everything_is_bounded() -> None:
    assert is_bounded(STATUS)


def test_columns_show_what_a_report_has() -> None:
    for column in VERSION["additionalPrinterColumns"]:
        _, *parts = column["jsonPath"].split(".")
        result: Any = {"status": msgspec.to_builtins(FULL), "metadata": {"creationTimestamp": "now"}}
        for part in parts:
            result = result[part]
        assert isinstance(result, str)


def test_an_object_with_every_field_is_taken() -> None:
    def filled(value: Any) -> bool:
        if isinstance(value, msgspec.Struct):
            return all(filled(getattr(value, f.name)) for f in msgspec.structs.fields(value))
        return filled(value[0]) if isinstance(value, tuple) and value else value not in ("", (), None, False)

    assert filled(FULL)
    assert errors(FULL) == []


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"problems": ("x",) * (MAX_PROBLEMS + 1)}, ".problems: maxItems"),
        ({"problems": ("x" * (MAX_TEXT + 1),)}, ".problems[0]: maxLength"),
        ({"gpus": (msgspec.structs.replace(FULL.gpus[0], uuid="GPU-1"),)}, ".gpus[0].uuid: pattern"),
        ({"pfs": (Pf(bdf=PciAddress("0000:3B:00.0")),)}, ".pfs[0].bdf: pattern"),
        ({"pfs": (Pf(bdf=PciAddress("0000:3b:00.0"), rail=MOST_RAIL + 1),)}, ".pfs[0].rail: maximum"),
        ({"gpus": (msgspec.structs.replace(FULL.gpus[0], place=Place(path=("17",))),)}, ".gpus[0].place.path[0]: pattern"),
        ({"gpus": (msgspec.structs.replace(FULL.gpus[0], place=Place(numa=-1)),)}, ".gpus[0].place.numa: minimum"),
        ({"driver": 550}, ".driver: type"),
        ({"gpus": (msgspec.structs.replace(FULL.gpus[0], memory_mib=2**62),)}, ".gpus[0].memoryMiB: maximum"),
        ({"gpus": (msgspec.structs.replace(FULL.gpus[0], reserved_mib=2**62),)}, ".gpus[0].reservedMiB: maximum"),
    ],
)
def test_an_invalid_report_is_refused(changed: dict[str, Any], error: str) -> None:
    assert errors(msgspec.structs.replace(FULL, **changed)) == [error]


def test_every_number_has_an_end() -> None:
    def integers(schema: dict[str, Any], at: str) -> Iterator[tuple[str, dict[str, Any]]]:
        if schema.get("type") == "integer":
            yield at, schema
        for name, inner in schema.get("properties", {}).items():
            yield from integers(inner, f"{at}.{name}")
        if "items" in schema:
            yield from integers(schema["items"], f"{at}[]")

    result = dict(integers(STATUS, ""))
    assert len(result) > 20
    assert [at for at, schema in result.items() if "maximum" not in schema and schema.get("format") != "int64"] == []
    assert {schema["maximum"] for at, schema in result.items() if at.endswith("MiB")} == {MOST_MIB}


def test_central_reads_no_amount_that_the_api_server_refuses() -> None:
    report = msgspec.to_builtins(FULL)
    report["gpus"][0]["memoryMiB"] = 2**62
    with pytest.raises(msgspec.ValidationError, match="memoryMiB"):
        msgspec.convert(report, Status)


def test_a_field_that_is_missing_or_unknown_is_an_error() -> None:
    assert list(find_errors(STATUS, {"pfs": [{}], "colour": "red"})) == [".pfs[0].bdf: required", ".colour: unknown"]


def test_a_node_that_says_too_much_is_cut_to_what_is_taken() -> None:
    text = "€" * (2 * MAX_TEXT)
    inventory = Inventory(problems=(text,) * (2 * MAX_PROBLEMS))
    status = build_status(inventory, (), unmanaged={}, reconciled=True, boot_id=text, reporter="1")
    assert errors(status) == []
    assert (len(status.problems), len(status.problems[0]), len(status.boot_id)) == (MAX_PROBLEMS, MAX_TEXT, MAX_TEXT)
