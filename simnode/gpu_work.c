/* A CUDA program for the containers of simulated nodes. It calls the driver API, as an ordinary program does that knows nothing
 * of shares, and prints what it got.
 *
 *   gpu-work memory MIB...       allocates each amount and keeps it; prints the CUresult of each, then what cuMemGetInfo returns
 *   gpu-work nvml MIB            allocates the amount, and prints what NVML returns of the first card's memory
 *   gpu-work run MS KERNEL_US    launches kernels of KERNEL_US microseconds for MS milliseconds; prints the device's time it used
 *   gpu-work launches COUNT      launches so many kernels that take no time; prints the nanoseconds of one launch
 *
 * `gpu-work --library NAME ...` opens the driver's library by this name, not by libcuda.so.1.
 * On the fake device a kernel takes as many microseconds as its grid has blocks in x (fake_cuda.c). Exit status: 0; 1 if the
 * device cannot be used, with the name of the call and its CUresult; 2 for wrong arguments.
 * Source of names and types: the CUDA driver API, as cuda-bindings (Apache-2.0) declares it.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef void *Handle;

static const char *cuda = "libcuda.so.1";
static void *library;

static void load(const char *name) {
  library = dlopen(name, RTLD_NOW);
  if (library) return;
  fprintf(stderr, "gpu-work: %s\n", dlerror());
  exit(1);
}

static void *find(const char *name) {
  void *found = dlsym(library, name);
  if (!found) {
    fprintf(stderr, "gpu-work: the library has no %s\n", name);
    exit(1);
  }
  return found;
}

static void check(const char *call, CUresult result) {
  if (result) {
    fprintf(stderr, "gpu-work: %s returned %d\n", call, result);
    exit(1);
  }
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void start_device(void) {
  load(cuda);
  CUresult (*init)(unsigned) = find("cuInit");
  CUresult (*get)(int *, int) = find("cuDeviceGet");
  CUresult (*retain)(Handle *, int) = find("cuDevicePrimaryCtxRetain");
  CUresult (*set_current)(Handle) = find("cuCtxSetCurrent");
  int device;
  Handle context;
  check("cuInit", init(0));
  check("cuDeviceGet", get(&device, 0));
  check("cuDevicePrimaryCtxRetain", retain(&context, device));
  check("cuCtxSetCurrent", set_current(context));
}

static void use_memory(int count, char **amounts) {
  CUresult (*allocate)(CUdeviceptr *, size_t) = find("cuMemAlloc_v2");
  CUresult (*info)(size_t *, size_t *) = find("cuMemGetInfo_v2");
  for (int i = 0; i < count; i++) {
    CUdeviceptr at;
    printf("%s MiB: %d\n", amounts[i], allocate(&at, (size_t)atoll(amounts[i]) << 20));
  }
  size_t left, total;
  check("cuMemGetInfo_v2", info(&left, &total));
  printf("%zu of %zu MiB are free\n", left >> 20, total >> 20);
}

static void show_nvml(size_t mib) {
  CUresult (*allocate)(CUdeviceptr *, size_t) = find("cuMemAlloc_v2");
  CUdeviceptr at;
  check("cuMemAlloc_v2", allocate(&at, mib << 20));
  load("libnvidia-ml.so.1");
  int (*init)(void) = find("nvmlInit_v2");
  int (*get)(unsigned, Handle *) = find("nvmlDeviceGetHandleByIndex_v2");
  int (*info)(Handle, unsigned long long *) = find("nvmlDeviceGetMemoryInfo");
  Handle device;
  unsigned long long memory[3]; /* nvmlMemory_t: total, free, used */
  check("nvmlInit_v2", init());
  check("nvmlDeviceGetHandleByIndex_v2", get(0, &device));
  check("nvmlDeviceGetMemoryInfo", info(device, memory));
  printf("%llu of %llu MiB are used\n", memory[2] >> 20, memory[0] >> 20);
}

typedef CUresult (*Launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);

static Handle load_kernel(void) {
  CUresult (*load_module)(Handle *, const void *) = find("cuModuleLoadData");
  CUresult (*get)(Handle *, Handle, const char *) = find("cuModuleGetFunction");
  Handle module, kernel;
  check("cuModuleLoadData", load_module(&module, ""));
  check("cuModuleGetFunction", get(&kernel, module, "work"));
  return kernel;
}

static void use_compute(double milliseconds, unsigned kernel_us) {
  Launch launch = find("cuLaunchKernel");
  CUresult (*synchronize)(void) = find("cuCtxSynchronize");
  Handle kernel = load_kernel();
  double began = now_ms(), used = 0;
  while (now_ms() - began < milliseconds) {
    check("cuLaunchKernel", launch(kernel, kernel_us, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    check("cuCtxSynchronize", synchronize());
    used += kernel_us / 1e3;
  }
  printf("%.0f of %.0f ms\n", used, now_ms() - began);
}

static void count_launches(long count) {
  Launch launch = find("cuLaunchKernel");
  Handle kernel = load_kernel();
  check("cuLaunchKernel", launch(kernel, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)); /* it may wait for a turn */
  double began = now_ms();
  for (long i = 0; i < count; i++) check("cuLaunchKernel", launch(kernel, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
  printf("%.1f ns\n", (now_ms() - began) * 1e6 / count);
}

int main(int argc, char **argv) {
  if (argc > 2 && !strcmp(argv[1], "--library")) {
    cuda = argv[2];
    argc -= 2, argv += 2;
  }
  if (argc > 2 && !strcmp(argv[1], "memory")) {
    start_device();
    use_memory(argc - 2, argv + 2);
  } else if (argc == 4 && !strcmp(argv[1], "run") && atof(argv[2]) > 0 && atoi(argv[3]) > 0) {
    start_device();
    use_compute(atof(argv[2]), (unsigned)atoi(argv[3]));
  } else if (argc == 3 && !strcmp(argv[1], "nvml")) {
    start_device();
    show_nvml((size_t)atoll(argv[2]));
  } else if (argc == 3 && !strcmp(argv[1], "launches") && atol(argv[2]) > 0) {
    start_device();
    count_launches(atol(argv[2]));
  } else {
    fprintf(stderr, "usage: gpu-work [--library NAME] memory MIB... | nvml MIB | run MS KERNEL_US | launches COUNT\n");
    return 2;
  }
  return 0;
}
