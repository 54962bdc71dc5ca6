"""All-reduce of growing messages over all GPUs that torchrun started this for; rank 0 prints the bus bandwidth, and whether
sums are right.

Bus bandwidth is what nccl-tests calls so: bytes / seconds * 2 (n - 1) / n, comparable between numbers of GPUs.
"""

import os
import time

import torch
import torch.distributed as dist

SIZES = [2**exponent for exponent in range(20, 31, 2)]  # bytes
WARM_UP, TIMES = 5, 20


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, world = dist.get_rank(), dist.get_world_size()
    wrong = 0
    for size in SIZES:
        values = torch.full((size // 4,), float(rank + 1), device=device)
        dist.all_reduce(values)
        right = bool((values == world * (world + 1) / 2).all())
        wrong += not right
        seconds = measure(values)
        if rank == 0:
            bus = size / seconds * 2 * (world - 1) / world
            print(f"{size:>12} bytes  {seconds * 1e6:>10.1f} us  {bus / 1e9:>8.2f} GB/s bus  {'right' if right else 'WRONG'}")
    dist.destroy_process_group()
    raise SystemExit(1 if wrong else 0)


def measure(values: torch.Tensor) -> float:
    """Seconds for one."""
    for _ in range(WARM_UP):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(TIMES):
        dist.all_reduce(values)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / TIMES


main()
