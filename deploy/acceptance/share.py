"""Use a share of a card with PyTorch: `share.py memory` and `share.py work SECONDS` print a name and a number a line."""

import subprocess
import sys
import time

import torch

MIB = 1 << 20
BLOCK_MIB = 64
SIDE = 4096  # rows of each square matrix; one product takes a few hundred microseconds to a few milliseconds


def memory() -> None:
    """Print what CUDA and nvidia-smi call the card's memory, and how much can be allocated in blocks."""
    left, total = torch.cuda.mem_get_info()
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()  # noqa: S603 -- a fixed command
    blocks = []
    try:
        while len(blocks) * BLOCK_MIB * MIB <= total:
            blocks.append(torch.empty(BLOCK_MIB * MIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    print("cuda_total_mib", total // MIB)
    print("cuda_free_mib", left // MIB)
    print("nvidia_smi_mib", shown[0] if shown else 0)
    print("allocated_mib", len(blocks) * BLOCK_MIB)


def work(seconds: float) -> None:
    """Print how many products of matrices the card made in a second."""
    one = torch.randn(SIDE, SIDE, dtype=torch.float16, device="cuda")
    for _ in range(5):
        one @ one
    torch.cuda.synchronize()
    made, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            one @ one
        torch.cuda.synchronize()
        made += 10
    print("products_per_s", f"{made / (time.perf_counter() - began):.1f}")


if sys.argv[1] == "memory":
    memory()
else:
    work(float(sys.argv[2]))
