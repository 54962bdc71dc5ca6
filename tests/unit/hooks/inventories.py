"""Build small inventories for tests: cards and VFs by number, each field as a node would report it."""

from dataclasses import replace

from hooks.model.inventory import CharDevice, Driver, Gpu, GpuProcess, Inventory, MigInstance, Pf, Vf
from lading.vocabulary import GpuUuid, PciAddress


def uuid(index: int) -> GpuUuid:
    return GpuUuid(f"GPU-{index:08x}-0000-0000-0000-00000000000{index:x}")


def mig_uuid(index: int) -> str:
    return f"MIG-{index:08x}-1111-2222-3333-444444444444"


def node(path: str, minor: int = 0) -> CharDevice:
    return CharDevice(path=path, host_path="/node" + path, major=195, minor=minor)


def gpu(index: int, *, minor: int | None = None, unhealthy: str = "") -> Gpu:
    """Return a GPU whose index and minor differ, so that code that confuses them gives the wrong card."""
    number = 7 - index if minor is None else minor
    return Gpu(
        uuid=uuid(index),
        vendor="nvidia",
        bdf=PciAddress(f"0000:{0x10 + index:02x}:00.0"),
        index=index,
        minor=number,
        model="NVIDIA H100",
        memory_mib=81559,
        reserved_mib=559,
        numa=0,
        node=node(f"/dev/nvidia{number}", number),
        unhealthy=unhealthy,
    )


def mig_gpu(index: int, instances: int = 2) -> Gpu:
    """Return a GPU with the instances 10·index, 10·index+1, …"""
    migs = tuple(
        MigInstance(
            uuid=mig_uuid(10 * index + i),
            gpu_instance=i + 1,
            compute_instance=0,
            memory_mib=40000,
            nodes=(node(f"/dev/nvidia-caps/nvidia-cap{10 * i + 1}"), node(f"/dev/nvidia-caps/nvidia-cap{10 * i + 2}")),
        )
        for i in range(instances)
    )
    return replace(gpu(index), mig=migs, mig_enabled=True)


def running(*pids: int, used_mib: int | None = None) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(pid=pid, used_mib=used_mib) for pid in pids)


def vf(number: int, *, unhealthy: str = "") -> Vf:
    """Return a VF with ibdev mlx5_<number+1> and uverbs<number+20>."""
    return Vf(
        bdf=PciAddress(f"0000:3b:00.{number + 1}"),
        pf=PciAddress("0000:3b:00.0"),
        index=number,
        driver="mlx5_core",
        numa=0,
        ibdev=f"mlx5_{number + 1}",
        uverbs=node(f"/dev/infiniband/uverbs{number + 20}"),
        umad=(node(f"/dev/infiniband/umad{number}"), node(f"/dev/infiniband/issm{number}")),
        unhealthy=unhealthy,
    )


def inventory(*, gpus: tuple[Gpu, ...] = (), vfs: tuple[Vf, ...] = ()) -> Inventory:
    pf = Pf(bdf=PciAddress("0000:3b:00.0"), driver="mlx5_core", numa=0, ibdev="mlx5_0", total_vfs=7, vfs=vfs)
    control = tuple(node(f"/dev/{name}") for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"))
    return Inventory(
        gpus=gpus,
        pfs=(pf,) if vfs else (),
        drivers=(Driver(vendor="nvidia", version="580.65.06", control=control),) if gpus else (),
        rdma_cm=node("/dev/infiniband/rdma_cm") if vfs else None,
    )
