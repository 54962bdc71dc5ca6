"""Do one piece of a framework's real work on the card: `frameworks.py WORK`. Print what it was given and made, in JSON.

Each function is a piece of work, and its name begins with the name of the package that it needs.
"""

import json
import os
import sys
import threading
import time
from typing import Any

GIB = 1 << 30
BLOCK = GIB // 8
CAPTURES = 20


def torch_memory() -> dict[str, Any]:
    """Fill the share twice, and go on."""
    import torch

    total = torch.cuda.mem_get_info()[1]
    blocks = [_fill_torch(), _fill_torch()]
    matrix = torch.ones(512, 512, device="cuda")
    return {"total": total, "filled": blocks, "sum": float((matrix @ matrix).sum())}


def _fill_torch() -> int:
    """Return how many bytes are given before there is no more."""
    import torch

    blocks = []
    try:
        while True:
            blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        return len(blocks) * BLOCK
    finally:
        del blocks
        torch.cuda.empty_cache()


def torch_memory_of_cudaMallocAsync() -> dict[str, Any]:  # noqa: N802 -- CUDA's name
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    return torch_memory()


def torch_memory_in_expandable_segments() -> dict[str, Any]:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return torch_memory()


def torch_training() -> dict[str, Any]:
    import torch

    torch.manual_seed(1)
    layers = [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(1024, 10)]
    net = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    images, labels = torch.randn(128, 3, 64, 64, device="cuda"), torch.randint(10, (128,), device="cuda")
    losses = []
    for _ in range(60):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"first": losses[0], "last": losses[-1]}


def torch_graph() -> dict[str, Any]:
    import torch

    x = torch.full((256, 256), 2.0, device="cuda")
    y = x @ x  # cuBLAS makes its workspace outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x @ x
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    return {"captures": 1, "value": float(y[0, 0])}


def torch_graphs_beside_a_thread_that_launches() -> dict[str, Any]:
    """Capture again and again in each mode while another thread keeps the card busy."""
    import torch

    x = torch.full((256, 256), 2.0, device="cuda")
    y = x @ x
    torch.cuda.synchronize()
    ending = threading.Event()
    launching = threading.Thread(target=_launch_until, args=(ending,))
    launching.start()
    time.sleep(1)  # it is at work
    try:
        for mode in ("global", "thread_local", "relaxed"):
            _capture(x, y, mode)
    finally:
        ending.set()
        launching.join()
    return {"captures": 3 * CAPTURES, "value": float((x @ x)[0, 0])}


def _launch_until(ending: threading.Event) -> None:
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        a = torch.randn(4096, 4096, device="cuda")
        b = torch.empty_like(a)
        while not ending.is_set():
            for _ in range(8):
                torch.matmul(a, a, out=b)
            torch.cuda.current_stream().synchronize()


def _capture(x: Any, y: Any, mode: str) -> None:
    import torch

    for _ in range(CAPTURES):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode=mode)
            torch.add(x, x, out=y)
            time.sleep(0.03)  # turns end meanwhile
            graph.capture_end()
            graph.replay()


def torch_nccl() -> dict[str, Any]:
    """Add over the ranks of a group of one."""
    import torch
    import torch.distributed

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    value = torch.full((1 << 20,), 3.0, device="cuda")
    torch.distributed.all_reduce(value)
    total = float(value.sum())
    torch.distributed.destroy_process_group()
    return {"value": total / (1 << 20)}


def jax_matrices() -> dict[str, Any]:
    import jax

    x = jax.numpy.ones((1024, 1024))
    value = float(jax.jit(lambda a: (a @ a).sum())(x))
    return {"value": value / (1 << 30), "limit": jax.devices()[0].memory_stats()["bytes_limit"]}


def cupy_matrices() -> dict[str, Any]:
    import cupy

    x = cupy.ones((1024, 1024), dtype=cupy.float32)
    value = float((x @ x).sum()) / (1 << 30)
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        again = float(cupy.ones(1000).sum())
    return {"value": value, "async": again, "total": cupy.cuda.runtime.memGetInfo()[1]}


def pynvml_memory() -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
    return {"total": memory.total}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
