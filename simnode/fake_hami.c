/* A stand-in for HAMi-core's libvgpu.so: a preload library that limits cuMemAlloc_v2 by the names and in the order that HAMi-core
 * uses. The processes of a container share the amount in use, in a file that the first of them makes. While a process starts, it
 * holds a lock that other containers would wait for if they had the same file.
 *
 * It is like HAMi-core in what it takes from the environment and in which files it needs; it ends the program without them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int CUresult;
typedef CUresult (*Allocate)(unsigned long long *, size_t);
enum { SUCCESS, OUT_OF_MEMORY = 2 };

static const char *FIRST_VERSIONS[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34", NULL}; /* x86-64, aarch64, newer ones */
static Allocate allocate;

static void *must(void *found, const char *what) {
  if (found && found != MAP_FAILED) return found;
  fprintf(stderr, "fake libvgpu.so: cannot use %s\n", what);
  exit(1);
}

static int open_shared(const char *path) {
  umask(0);
  int fd = open(path, O_RDWR | O_CREAT, 0666);
  if (fd < 0) must(NULL, path);
  return fd;
}

static size_t *used(void) {
  static size_t *shared;
  if (shared) return shared;
  int lock = open_shared("/tmp/vgpulock/lock");
  flock(lock, LOCK_EX);
  int fd = open_shared(must(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"), "CUDA_DEVICE_MEMORY_SHARED_CACHE"));
  if (ftruncate(fd, sizeof *shared)) must(NULL, "the region");
  shared = must(mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), "the region");
  close(fd);
  close(lock);
  return shared;
}

static size_t limit(void) {
  const char *text = getenv("CUDA_DEVICE_MEMORY_LIMIT_0"); /* gpu-work uses the first device */
  if (!text || !*text) text = getenv("CUDA_DEVICE_MEMORY_LIMIT");
  return text && *text ? strtoull(text, NULL, 0) << 20 : (size_t)-1;
}

static CUresult allocate_within(unsigned long long *at, size_t size) {
  if (__atomic_add_fetch(used(), size, __ATOMIC_SEQ_CST) <= limit()) return allocate(at, size);
  __atomic_sub_fetch(used(), size, __ATOMIC_SEQ_CST);
  return OUT_OF_MEMORY;
}

__attribute__((visibility("default"))) void *dlsym(void *library, const char *name) {
  static void *(*real)(void *, const char *);
  for (const char **version = FIRST_VERSIONS; !real && *version; version++) real = dlvsym(RTLD_NEXT, "dlsym", *version);
  if (strcmp(name, "cuMemAlloc_v2")) return real(library, name);
  allocate = (Allocate)must(real(library, name), name);
  return (void *)allocate_within;
}
