/* A CUDA program for the containers of simulated nodes. It calls the driver API, as an ordinary program does that knows nothing
 * of shares, and prints what it got.
 *
 *   gpu-work memory MIB...       allocates each amount and keeps it; prints the CUresult of each, then what cuMemGetInfo returns
 *   gpu-work nvml MIB            allocates the amount, and prints what NVML returns of the first card's memory
 *   gpu-work run MS KERNEL_US    launches kernels of KERNEL_US microseconds for MS milliseconds; prints the device's time it used
 *   gpu-work launches COUNT [US] launches so many kernels of US microseconds, or of one; prints the nanoseconds of one
 *                                launch
 *   gpu-work allocations COUNT [async]  allocates 4 MiB and frees them, so often; prints the nanoseconds of one such pair
 *   gpu-work load MS KERNEL_US BATCH PERIOD_US  prints `ready` and waits for a line. Then, for MS milliseconds, it launches BATCH
 *                                kernels and synchronises, in each period (0: at once). Prints the microseconds of work that the
 *                                device has done in each tenth of a second, and on a second line how long each batch took, in
 *                                microseconds
 *
 * `gpu-work --library NAME ...` opens the driver's library by this name, not by libcuda.so.1.
 * A kernel takes as many microseconds as its grid has blocks in x: on the fake device any kernel (fake_cuda.c), on a card that of
 * work.ptx, which simnode/images.py puts before this text, with ROUNDS_PER_US in the environment. A card launches no kernel that
 * takes no time. Exit status: 0; 1 if the device cannot be used, with the name of the call and its CUresult; 2 for wrong
 * arguments.
 * Source of names and types: the CUDA driver API, as cuda-bindings (Apache-2.0) declares it.
 */
#define _GNU_SOURCE
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

enum { THREADS = 1024 }; /* as many as ROUNDS_PER_US was measured with (tests/shares/program.py) */

static Handle load_kernel(void) {
  CUresult (*load_module)(Handle *, const void *) = find("cuModuleLoadData");
  CUresult (*get)(Handle *, Handle, const char *) = find("cuModuleGetFunction");
  Handle module, kernel;
  const char *rounds = getenv("ROUNDS_PER_US");
  char *text = strdup(kernel_ptx);
  for (char *at = text; (at = strstr(at, "ROUNDS")); at++) { /* a number of at most as many digits as the word has letters */
    char number[7];
    snprintf(number, sizeof number, "%-6d", rounds ? atoi(rounds) : 1);
    memcpy(at, number, 6);
  }
  check("cuModuleLoadData", load_module(&module, text));
  free(text);
  check("cuModuleGetFunction", get(&kernel, module, "work"));
  return kernel;
}

static void use_compute(double milliseconds, unsigned kernel_us) {
  Launch launch = find("cuLaunchKernel");
  CUresult (*synchronize)(void) = find("cuCtxSynchronize");
  Handle kernel = load_kernel();
  double began = now_ms(), used = 0;
  while (now_ms() - began < milliseconds) {
    check("cuLaunchKernel", launch(kernel, kernel_us, 1, 1, THREADS, 1, 1, 0, NULL, NULL, NULL));
    check("cuCtxSynchronize", synchronize());
    used += kernel_us / 1e3;
  }
  printf("%.0f of %.0f ms\n", used, now_ms() - began);
}

static void count_launches(long count, unsigned kernel_us) {
  Launch launch = find("cuLaunchKernel");
  Handle kernel = load_kernel();
  check("cuLaunchKernel", launch(kernel, kernel_us, 1, 1, THREADS, 1, 1, 0, NULL, NULL, NULL)); /* it may wait for a turn */
  double began = now_ms();
  for (long i = 0; i < count; i++) {
    check("cuLaunchKernel", launch(kernel, kernel_us, 1, 1, THREADS, 1, 1, 0, NULL, NULL, NULL));
  }
  printf("%.1f ns\n", (now_ms() - began) * 1e6 / count);
}

static void count_allocations(long count, int async) {
  CUresult (*allocate)(CUdeviceptr *, size_t) = find("cuMemAlloc_v2"), (*give_back)(CUdeviceptr) = find("cuMemFree_v2");
  CUresult (*allocate_async)(CUdeviceptr *, size_t, Handle) = find("cuMemAllocAsync");
  CUresult (*give_back_async)(CUdeviceptr, Handle) = find("cuMemFreeAsync");
  CUresult (*synchronize)(void) = find("cuCtxSynchronize");
  double began = 0;
  for (long i = -count / 10; i < count; i++) { /* the first tenth does not count */
    CUdeviceptr at;
    if (!i) check("cuCtxSynchronize", synchronize()), began = now_ms();
    check("an allocation", async ? allocate_async(&at, 4 << 20, NULL) : allocate(&at, 4 << 20));
    check("its end", async ? give_back_async(at, NULL) : give_back(at));
  }
  printf("%.1f ns\n", (now_ms() - began) * 1e6 / count);
}

static void make_load(double milliseconds, unsigned kernel_us, unsigned batch, double period_us) {
  Launch launch = find("cuLaunchKernel");
  CUresult (*synchronize)(void) = find("cuCtxSynchronize");
  Handle kernel = load_kernel();
  size_t parts = (size_t)(milliseconds / 100) + 1, number = 0, space = 1024;
  double *done_us = calloc(parts, sizeof *done_us), *took_us = malloc(space * sizeof *took_us);
  for (int i = 0; i < 20; i++) check("cuLaunchKernel", launch(kernel, kernel_us, 1, 1, THREADS, 1, 1, 0, NULL, NULL, NULL));
  check("cuCtxSynchronize", synchronize());
  printf("ready\n");
  fflush(stdout);
  if (getchar() == EOF) exit(1);
  double began = now_ms(), next = began, ended = began;
  while (ended - began < milliseconds) {
    double now = now_ms();
    if (next > now) {
      double s = (next - now) / 1e3;
      nanosleep(&(struct timespec){(time_t)s, (long)((s - (time_t)s) * 1e9)}, NULL);
    }
    now = now_ms();
    for (unsigned i = 0; i < batch; i++) {
      check("cuLaunchKernel", launch(kernel, kernel_us, 1, 1, THREADS, 1, 1, 0, NULL, NULL, NULL));
    }
    check("cuCtxSynchronize", synchronize());
    ended = now_ms();
    next = next + period_us / 1e3 > ended ? next + period_us / 1e3 : ended;
    if (ended - began >= milliseconds) break; /* work that ends later does not count */
    done_us[(size_t)((ended - began) / 100)] += (double)kernel_us * batch;
    if (number == space) took_us = realloc(took_us, (space *= 2) * sizeof *took_us);
    took_us[number++] = (ended - now) * 1e3;
  }
  for (size_t i = 0; i + 1 < parts; i++) printf("%.0f ", done_us[i]);
  printf("\n");
  for (size_t i = 0; i < number; i++) printf("%.0f ", took_us[i]);
  printf("\n");
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
  } else if ((argc == 3 || argc == 4) && !strcmp(argv[1], "launches") && atol(argv[2]) > 0) {
    start_device();
    count_launches(atol(argv[2]), argc == 4 ? (unsigned)atoi(argv[3]) : 1);
  } else if ((argc == 3 || argc == 4) && !strcmp(argv[1], "allocations") && atol(argv[2]) > 0) {
    start_device();
    count_allocations(atol(argv[2]), argc == 4);
  } else if (argc == 6 && !strcmp(argv[1], "load") && atof(argv[2]) > 0 && atoi(argv[3]) > 0 && atoi(argv[4]) > 0) {
    start_device();
    make_load(atof(argv[2]), (unsigned)atoi(argv[3]), (unsigned)atoi(argv[4]), atof(argv[5]));
  } else {
    fprintf(stderr, "usage: gpu-work [--library NAME] memory MIB... | nvml MIB | run MS KERNEL_US | launches COUNT [US] |\n"
                    "       allocations COUNT [async] | load MS KERNEL_US BATCH PERIOD_US\n");
    return 2;
  }
  return 0;
}
