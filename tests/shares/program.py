"""Run CUDA calls for a test: read a list of calls in JSON from a line, and write a list of their answers to a line.

It calls the driver API by ctypes, as a program does that knows nothing of shares, and runs as a process of its own. Each answer
to an allocation is its CUresult. The file WORK_PTX has the kernel that it launches, and ROUNDS_PER_US is what `calibrate`
returned on the card; a fake card needs neither.
"""

import copy
import ctypes
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
THREADS = 1024  # a block has so many; ROUNDS_PER_US was measured with as many
TRIAL_ROUNDS = 50  # in place of ROUNDS_PER_US while it is measured: its approximate value on an H200
BLOCK = 2 * MIB  # the granularity of cuMemCreate
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT
_LOCALITY_DOMAIN = 6  # a CUmemLocationType that names no card
_POOL = "iiiiPQ56x"  # CUmemPoolProps: allocation type, handle types, location type, location, security attributes, maximum size
_size, _pointer = ctypes.c_size_t, ctypes.c_uint64


class ArrayDescriptor(ctypes.Structure):
    _fields_ = [("width", _size), ("height", _size), ("format", ctypes.c_int), ("channels", ctypes.c_uint)]


class Array3dDescriptor(ctypes.Structure):
    _fields_ = [
        ("width", _size),
        ("height", _size),
        ("depth", _size),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    ]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("unused", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class NvmlProcess(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("part", ctypes.c_uint)]


class Device:
    """The calls, by the names that a script gives them."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.is_fake = os.environ.get("LADING_TEST_CARD") != "machine"
        self.held: list[tuple[str, int]] = []  # kind and handle, in the order of allocation
        self.mapped: list[int] = []
        self.variables: dict[str, Any] = {}
        self.run: Run | None = None
        self.graph = ctypes.c_void_p()

    def init(self) -> int:
        result = self.cuda.cuInit(0)
        self.context = ctypes.c_void_p()
        if not result:
            self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0)
            self.enter()
            self.pool, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
            self._create_pool()
            self.put("kernel", self.load_kernel())
            self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1)  # the default stream does not wait for it
        return int(result)

    def load_kernel(self, rounds: int = TRIAL_ROUNDS, name: str = "work") -> int:
        """Load a kernel of WORK_PTX into the current context. Return its handle."""
        rounds = int(os.environ.get("ROUNDS_PER_US", rounds))
        with open(os.environ.get("WORK_PTX", os.devnull)) as file:
            text = file.read().replace("ROUNDS", str(rounds))
        module, kernel = ctypes.c_void_p(), _pointer()
        assert not self.cuda.cuModuleLoadData(ctypes.byref(module), text.encode())
        assert not self.cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name.encode())
        return kernel.value

    def load(self, variable: str, name: str = "work") -> None:
        """Load a kernel into the current context, and put its handle into a variable."""
        self.put(variable, self.load_kernel(name=name))

    def calibrate(self) -> dict[str, float]:
        """Return how many rounds of the kernel's loop take a microsecond of a card that is free, by the grid's size.

        Both are the same where the kernel takes as long as it should; the larger grid counts."""
        self.launch_many(1000, 300)  # the card's clocks are up after it
        self.sync()
        return {str(blocks): self._rounds_per_us(blocks) for blocks in (64, 1000)}

    def _rounds_per_us(self, blocks: int) -> float:
        number = 200_000 // blocks
        began = time.perf_counter()
        assert not self.launch_many(blocks, number)
        assert not self.sync()
        return TRIAL_ROUNDS * blocks * number / ((time.perf_counter() - began) * 1e6)

    def _create_pool(self) -> int:
        properties = struct.pack(_POOL, 1, 0, 1, 0, 0, 0)  # pinned memory of device 0
        return int(self.cuda.cuMemPoolCreate(ctypes.byref(self.pool), properties))

    def enter(self) -> None:
        """Use the context in this thread."""
        self.cuda.cuCtxSetCurrent(self.context)

    # Any function

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function of the driver, and return its result.

        An argument is a number, None, the name of a variable, `&` and that name for a place to write to, or a list of a format
        of `struct` and its values for a structure.
        """
        assert self.is_fake or not name.startswith("fake_"), "the test lacks the marker fake_card"
        return int(getattr(self.cuda, name)(*map(self._argument, arguments)))

    def _argument(self, given: Any) -> Any:
        if isinstance(given, str) and given.startswith("&"):
            return ctypes.byref(self.variables.setdefault(given[1:], _pointer()))
        if isinstance(given, list):
            layout, *values = given
            return struct.pack(layout, *map(self.value, values))
        return None if given is None else _pointer(self.value(given))

    def value(self, given: int | str) -> int:
        """Return the value of a variable, or the number itself."""
        return given if isinstance(given, int) else int(self.variables[given].value)

    def put(self, name: str, value: int | str, more: int = 0) -> None:
        """Set a variable."""
        self.variables[name] = _pointer(self.value(value) + more)

    def close(self, descriptor: str) -> None:
        os.close(self.value(descriptor))

    def reopen(self, descriptor: str) -> None:
        """Open the file another time, and close it: the number is that of the new open file."""
        number = self.value(descriptor)
        fresh = os.open(f"/proc/self/fd/{number}", os.O_RDWR)
        os.dup2(fresh, number)
        os.close(fresh)

    def take_descriptor(self, name: str, process: int, descriptor: int) -> None:
        """Open a file that another process has open."""
        self.put(name, os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR))

    def calls(self, *calls: list[Any]) -> list[Any]:
        """Make calls in a thread of their own, which ends after them, and return their answers."""
        answers: list[Any] = []
        working = threading.Thread(target=lambda: answers.extend(answer(self, call) for call in calls))
        working.start()
        working.join()
        return answers

    # Memory

    def alloc(self, kind: str, amount: int) -> int:
        out, cuda = _pointer(), self.cuda
        at = ctypes.byref(out)
        match kind:
            case "plain":
                result = cuda.cuMemAlloc_v2(at, _size(amount))
            case "managed":
                result = cuda.cuMemAllocManaged(at, _size(amount), 1)
            case "async":
                result = cuda.cuMemAllocAsync(at, _size(amount), None)
            case "pool":
                result = cuda.cuMemAllocFromPoolAsync(at, _size(amount), self.pool, None)
            case "pitch":
                pitch = _size()
                result = cuda.cuMemAllocPitch_v2(at, ctypes.byref(pitch), _size(MIB), _size(amount // MIB), 4)
            case "create":
                wanted = AllocationProperties(type=1, location_type=1)
                blocks = (amount + BLOCK - 1) // BLOCK
                result = cuda.cuMemCreate(at, _size(blocks * BLOCK), ctypes.byref(wanted), _pointer(0))
            case "array":
                flat = ArrayDescriptor(amount // 4 // 32768, 32768, FLOAT, 1)
                result = cuda.cuArrayCreate_v2(at, ctypes.byref(flat))
            case "array3d" | "mipmapped":
                deep = Array3dDescriptor(amount // MIB, 512, 512, FLOAT, 1, 0)
                create = cuda.cuArray3DCreate_v2 if kind == "array3d" else cuda.cuMipmappedArrayCreate
                result = create(at, ctypes.byref(deep), 1)
        if not result:
            self.held.append((kind, out.value))
        return int(result)

    def uncounted(self, way: str) -> int:
        """Allocate in a way that cannot be counted."""
        out, cuda = _pointer(), self.cuda
        at = ctypes.byref(out)
        match way:
            case "version 1":
                return int(cuda.cuMemAlloc(at, ctypes.c_uint(MIB)))
            case _:
                wanted = AllocationProperties(type=1, location_type=_LOCALITY_DOMAIN)
                return int(cuda.cuMemCreate(at, _size(MIB), ctypes.byref(wanted), _pointer(0)))

    def free(self, index: int) -> int:
        """Free what was allocated at this place among what is held; -1 where there is nothing."""
        if not self.held:
            return -1
        kind, handle = self.held.pop(index % len(self.held))
        return self._free(kind, handle)

    def _free(self, kind: str, handle: int) -> int:
        match kind:
            case "async" | "pool":
                result = self.cuda.cuMemFreeAsync(_pointer(handle), None)
            case "create":
                result = self.cuda.cuMemRelease(_pointer(handle))
            case "array" | "array3d":
                result = self.cuda.cuArrayDestroy(_pointer(handle))
            case "mipmapped":
                result = self.cuda.cuMipmappedArrayDestroy(_pointer(handle))
            case _:
                result = self.cuda.cuMemFree_v2(_pointer(handle))
        return int(result)

    def free_all(self) -> int:
        """Free all that is held, with its mappings, and what the pools keep of it."""
        ended = [self.free(0) for _ in range(len(self.held))] + [self.unmap(0) for _ in range(len(self.mapped))]
        return sum(ended) + self.trim()

    def map(self, index: int) -> int:
        """Map one of the handles of cuMemCreate; -1 where there is none."""
        handles = [handle for kind, handle in self.held if kind == "create"]
        if not handles:
            return -1
        at, handle = _pointer(), _pointer(handles[index % len(handles)])
        result = self.cuda.cuMemAddressReserve(ctypes.byref(at), _size(BLOCK), _size(0), _pointer(0), _pointer(0))
        result = result or self.cuda.cuMemMap(at, _size(BLOCK), _size(0), handle, _pointer(0))
        self.mapped.append(at.value)
        return int(result)

    def unmap(self, index: int) -> int:
        if not self.mapped:
            return -1
        return int(self.cuda.cuMemUnmap(_pointer(self.mapped.pop(index % len(self.mapped))), _size(BLOCK)))

    def retain(self, index: int) -> int:
        """Get the handle of a mapping a second time; -1 where there is none."""
        if not self.mapped:
            return -1
        out = _pointer()
        at = ctypes.c_void_p(self.mapped[index % len(self.mapped)])
        result = self.cuda.cuMemRetainAllocationHandle(ctypes.byref(out), at)
        if not result:
            self.held.append(("create", out.value))
        return int(result)

    def import_one(self, index: int) -> int:
        """Export one of the handles of cuMemCreate, and get another handle of its memory by that; -1 where there is none."""
        handles = [handle for kind, handle in self.held if kind == "create"]
        if not handles:
            return -1
        descriptor, out = ctypes.c_int(), _pointer()
        handle = _pointer(handles[index % len(handles)])
        result = self.cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1, _pointer(0))
        result = result or self.cuda.cuMemImportFromShareableHandle(ctypes.byref(out), ctypes.c_void_p(descriptor.value), 1)
        if not result:
            self.held.append(("create", out.value))
            os.close(descriptor.value)
        return int(result)

    def visit(self, amount: int) -> int:
        """Allocate in another context, and destroy that: memory of pools and of cuMemCreate stays."""
        other = ctypes.c_void_p()
        self.cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0)
        self.cuda.cuMemAlloc_v2(ctypes.byref(_pointer()), _size(amount))
        for kind in ("async", "create"):
            self.alloc(kind, amount)
        result = self.cuda.cuCtxDestroy_v2(other)
        self.enter()
        return int(result)

    def trim(self) -> int:
        """Give back what the pools keep of what was freed into them, which the driver does after a synchronisation only."""
        default = ctypes.c_void_p()
        self.cuda.cuCtxSynchronize()
        self.cuda.cuDeviceGetMemPool(ctypes.byref(default), 0)
        return int(self.cuda.cuMemPoolTrimTo(default, _size(0)) or self.cuda.cuMemPoolTrimTo(self.pool, _size(0)))

    def replace_pool(self) -> int:
        """Destroy the pool, and create another. What is allocated of it is to be freed."""
        return int(self.cuda.cuMemPoolDestroy(self.pool) or self._create_pool())

    def reset(self) -> int:
        """Reset the context, which frees all that is held, but for memory of pools and of cuMemCreate."""
        result = self.cuda.cuDevicePrimaryCtxReset_v2(0)
        self.held = [(kind, handle) for kind, handle in self.held if kind in {"async", "pool", "create"}]
        return int(result)

    def free_unknown(self) -> int:
        """Free what was never allocated."""
        return int(self.cuda.cuMemFree_v2(_pointer(42)))

    def info(self) -> list[int]:
        """Return what is free and what there is, in bytes."""
        left, total = _size(), _size()
        assert not self.cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total))
        return [left.value, total.value]

    def total(self) -> int:
        total = _size()
        assert not self.cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
        return total.value

    def counts(self, card: int = 0) -> list[int]:
        """Return what the device counts: launches of all processes, and bytes that are allocated by this one."""
        assert self.is_fake, "the test lacks the marker fake_card"
        launches, allocated = ctypes.c_int64(), _size()
        self.cuda.fake_cuda_counts(card, ctypes.byref(launches), ctypes.byref(allocated))
        return [launches.value, allocated.value]

    def churn(self, threads: int, rounds: int) -> int:
        """Allocate and free the same amount in several threads. Return the most that was allocated at a time, or 0 on a card
        that does not tell."""
        most = [0]

        def one() -> None:
            self.enter()
            for _ in range(rounds):
                out = _pointer()
                if not self.cuda.cuMemAlloc_v2(ctypes.byref(out), _size(BLOCK)):
                    time.sleep(0.0005)  # for others to free and allocate meanwhile
                    if self.is_fake:
                        most.append(self.counts()[1])
                    self.cuda.cuMemFree_v2(out)

        working = [threading.Thread(target=one) for _ in range(threads)]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()
        return max(most)

    def fill(self, amount: int) -> int:
        """Allocate this amount until it is refused; return how often that was possible."""
        number = 0
        while not self.alloc("plain", amount):
            number += 1
        return number

    def allocate_and_free(self, amount: int, rounds: int) -> int:
        """Allocate and free an amount so many times; return the worst result."""
        results, out = [0], _pointer()
        for _ in range(rounds):
            results.append(self.cuda.cuMemAlloc_v2(ctypes.byref(out), _size(amount)))
            results.append(self.cuda.cuMemFree_v2(out))
        return max(results)

    def mix(self, kinds: list[str], threads: int, rounds: int) -> int:
        """Allocate in several threads in all ways, and free all of it. Return the most that was allocated at a time."""
        most = [0]

        def one(number: int) -> None:
            chance, device = random.Random(number), copy.copy(self)  # noqa: S311 -- the same calls in each run
            device.held, device.mapped = [], []
            device.enter()
            for _ in range(rounds):
                match chance.choice(["alloc", "alloc", "free", "free", "map", "unmap", "retain", "import_one", "visit"]):
                    case "alloc":
                        device.alloc(chance.choice(kinds), chance.randrange(1, 10) * BLOCK)
                    case "visit":
                        device.visit(BLOCK)
                    case other:
                        getattr(device, other)(chance.randrange(8))
                most.append(self.counts()[1])
            device.free_all()

        working = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()
        return max(most)

    # Work

    def launch(self, microseconds: int, stream: bool = False) -> int:
        where = self.stream if stream else None
        kernel = self.variables["kernel"]
        return int(self.cuda.cuLaunchKernel(kernel, microseconds, 1, 1, THREADS, 1, 1, 0, where, None, None))

    def fault(self) -> int:
        """Launch a kernel that writes where no memory is."""
        kernel = _pointer(self.load_kernel(name="fault"))
        return int(self.cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None))

    def meet(self, kernel: str, counter: int | str, least: int) -> int:
        """Launch a kernel that adds 1 to a counter, and ends when the counter is `least`.

        The counter's value is its address in memory of the host. On a fake card it is any number, which processes may share."""
        where, end = _pointer(self.value(counter)), ctypes.c_uint32(least)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(where), ctypes.addressof(end))
        return int(self.cuda.cuLaunchKernel(self.variables[kernel], 1, 1, 1, 1, 1, 1, 0, None, arguments, None))

    def pulse(self, threads: int, launches: int, longest_us: int, longest_gap_us: int) -> int:
        """Launch kernels of random lengths in several threads, so many in each, with random gaps. Return the worst result."""
        worst = [0]

        def one(chance: random.Random) -> None:
            self.enter()
            for _ in range(launches):
                worst.append(self.launch(1 + chance.randrange(longest_us)))
                time.sleep(chance.random() * longest_gap_us / 1e6)  # the gaps of the load

        working = [threading.Thread(target=one, args=(random.Random(number),)) for number in range(threads)]  # noqa: S311 -- gaps
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()
        return max(worst)

    def worked_ns(self, card: int = 0) -> int:
        """Return for how long a fake card has worked for this process."""
        worked = self.cuda.fake_cuda_worked
        worked.restype = ctypes.c_longlong
        return int(worked(card))

    def sleep(self, seconds: float) -> None:
        """Pause between calls, as a program does that is asked for something now and then."""
        time.sleep(seconds)

    def sync(self) -> int:
        return int(self.cuda.cuCtxSynchronize())

    def launch_many(self, microseconds: int, number: int) -> int:
        """Launch kernels of this length one behind the other; return the worst result."""
        return max(self.launch(microseconds) for _ in range(number))

    def begin_capture(self, mode: int = 0) -> int:
        """Capture the stream; 0 is the global mode, 1 the thread-local one, 2 the relaxed one."""
        return int(self.cuda.cuStreamBeginCapture_v2(self.stream, mode))

    def end_capture(self) -> int:
        return int(self.cuda.cuStreamEndCapture(self.stream, ctypes.byref(self.graph)))

    def launch_graph(self) -> int:
        instance = ctypes.c_void_p()
        result = self.cuda.cuGraphInstantiateWithFlags(ctypes.byref(instance), self.graph, _pointer(0))
        return int(result or self.cuda.cuGraphLaunch(instance, self.stream))

    def begin(self, microseconds: int, each: int) -> int:
        """Launch kernels of this length in a thread from now on; synchronise after `each` of them, or never (0)."""
        self.run = Run(self, microseconds, each)
        return 0

    def so_far(self) -> dict[str, float]:
        """Return what the thread has done since it began, or since it was last asked."""
        assert self.run
        return self.run.so_far()

    def end(self) -> dict[str, float]:
        assert self.run
        return self.run.end()

    # Names

    def find_files(self, way: str, names: list[str]) -> list[str]:
        """Return the file in which each function is, found in this way."""
        loader = ctypes.CDLL(None)
        loader.dlmopen.restype = loader.dlsym.restype = ctypes.c_void_p
        kind, _, where = way.partition(" ")
        match kind:
            case "dlmopen":
                library = loader.dlmopen(ctypes.c_long(-1), where.encode(), os.RTLD_NOW)
            case _:
                flags = {"deepbind": os.RTLD_DEEPBIND, "global": os.RTLD_GLOBAL}.get(kind, os.RTLD_LOCAL)
                library = ctypes.CDLL(where, mode=os.RTLD_NOW | flags)._handle
        at = [loader.dlsym(ctypes.c_void_p(library), name.encode()) for name in names]
        return [self._file_of(loader, one) for one in at]

    def ask_for_files(self, version: str, names: list[str]) -> list[str]:
        """Return the file of each function that cuGetProcAddress of this version returns; it is found by itself first."""
        loader, own = ctypes.CDLL(None), ctypes.c_void_p()
        getter, extra = getattr(self.cuda, version), (None,) if version.endswith("_v2") else ()
        assert not getter(b"cuGetProcAddress", ctypes.byref(own), 12000, _pointer(0), *extra)
        signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, _pointer, ctypes.c_void_p)
        files = []
        for name in names:
            found = ctypes.c_void_p()
            base, flags = name.removesuffix("_ptsz").removesuffix("_v2"), 2 if name.endswith("_ptsz") else 0
            result = signature(own.value or 0)(base.encode(), ctypes.addressof(found), 12000, flags, None)
            files.append("" if result else self._file_of(loader, found.value))
        return files

    def init_in_namespace(self) -> int:
        """Initialise CUDA by a copy of the library in a namespace of the loader of its own."""
        loader = ctypes.CDLL(None)
        loader.dlmopen.restype = loader.dlsym.restype = ctypes.c_void_p
        library = loader.dlmopen(ctypes.c_long(-1), b"libcuda.so.1", os.RTLD_NOW)
        start = loader.dlsym(ctypes.c_void_p(library), b"cuInit")
        return int(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(start)(0))

    def start_runtime(self, path: str) -> int:
        """Have CUDA's runtime library start, which looks for the driver's functions."""
        return int(ctypes.CDLL(path).cudaGetDeviceCount(ctypes.byref(ctypes.c_int())))

    def _file_of(self, loader: ctypes.CDLL, at: int | None) -> str:
        said = (ctypes.c_void_p * 4)()
        assert at
        assert loader.dladdr(ctypes.c_void_p(at), said)
        return ctypes.string_at(said[0] or 0).decode()

    # NVML

    def nvml_memory(self) -> list[int]:
        """Return NVML's answer: its result, and if that is 0 the bytes in all, free and used of the first card."""
        nvml, card, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
        assert not nvml.nvmlInit_v2()
        assert not nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
        result = int(nvml.nvmlDeviceGetMemoryInfo(card, memory))
        return [result] if result else [0, *memory]

    def nvml_processes(self) -> dict[int, int]:
        """Return the bytes that each process has of the first card, as NVML counts them."""
        nvml, card, used = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), {}
        assert not nvml.nvmlInit_v2()
        assert not nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
        for read in (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3):
            number, listed = ctypes.c_uint(256), (NvmlProcess * 256)()
            assert not read(card, ctypes.byref(number), listed)
            used.update({one.pid: one.used for one in listed[: number.value]})
        assert not nvml.nvmlShutdown()
        return used

    def begin_call(self, name: str) -> None:
        """Make a call in a thread, and return while it goes on."""
        threading.Thread(target=getattr(self, name), daemon=True).start()
        time.sleep(0.3)

    # Processes

    def fork(self) -> int:
        """Fork a child that waits for calls. Return its process ID."""
        (reads, self.to_child), (self.of_child, writes) = os.pipe(), os.pipe()
        self.child = os.fork()
        if not self.child:
            answer_once(self, reads, writes)
            os._exit(0)
        return self.child

    def execute(self) -> int:
        """Fork a child that executes this program anew, and waits for calls. Return its process ID."""
        (reads, self.to_child), (self.of_child, writes) = os.pipe(), os.pipe()
        python = [sys.executable, "-I", "-S", __file__, str(reads), str(writes)]
        self.child = subprocess.Popen(python, pass_fds=(reads, writes)).pid
        return self.child

    def in_child(self, *calls: list[Any]) -> list[Any]:
        """Have the child make calls and end. Return its answers."""
        os.write(self.to_child, json.dumps(calls).encode())
        said = json.loads(os.read(self.of_child, 1 << 16))
        os.waitpid(self.child, 0)
        return list(said)


class Run:
    def __init__(self, device: Device, microseconds: int, each: int) -> None:
        self._device = device
        self._microseconds = microseconds
        self._each = each
        self._ending = False
        self._began = self._last = time.monotonic()
        self._launched = 0
        self._longest = 0.0
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def _go(self) -> None:
        self._device.enter()
        while not self._ending:
            assert not self._device.launch(self._microseconds)
            self._launched += 1
            if self._each and self._launched % self._each == 0:
                self._device.sync()
            now = time.monotonic()
            self._longest, self._last = max(self._longest, now - self._last), now

    def so_far(self) -> dict[str, float]:
        now = time.monotonic()
        said = {
            "busy_s": self._launched * self._microseconds / 1e6,
            "wall_s": now - self._began,
            "longest_s": max(self._longest, now - self._last),
        }
        self._began, self._launched, self._longest = now, 0, 0.0
        return said

    def end(self) -> dict[str, float]:
        said = self.so_far()
        self._ending = True
        self._thread.join()
        return said


def answer(device: Device, call: list[Any]) -> Any:
    function: Callable[..., Any] = getattr(device, call[0])
    return function(*call[1:])


def answer_once(device: Device, reads: int, writes: int) -> None:
    """Answer the calls of the parent, as its child."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG: it ends with its parent, whatever it does
    calls = json.loads(os.read(reads, 1 << 16))
    os.write(writes, json.dumps([answer(device, call) for call in calls]).encode())


def main() -> None:
    device = Device()
    if sys.argv[1:]:
        answer_once(device, int(sys.argv[1]), int(sys.argv[2]))
        return
    for line in sys.stdin:
        print(json.dumps([answer(device, call) for call in json.loads(line)]), flush=True)


if __name__ == "__main__":
    main()
