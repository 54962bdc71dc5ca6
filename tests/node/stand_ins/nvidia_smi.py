"""Print the memory of the first card in MiB, as `nvidia-smi --query-gpu=memory.total` does, by the container's NVML."""

import ctypes

nvml = ctypes.CDLL("libnvidia-ml.so.1")
card, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
for result in (
    nvml.nvmlInit_v2(),
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)),
    nvml.nvmlDeviceGetMemoryInfo(card, memory),
):
    assert not result
print(memory[0] >> 20)
