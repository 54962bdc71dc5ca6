/* Give a container's loader the driver's libraries: an OCI hook of the stage createContainer, for containers with GPUs.
 *
 *     lading-ldcache --driver VERSION [--no-compat] LIBRARY...
 *
 * The container's /etc/ld.so.cache gets an entry for each library, before those of the image. CUDA Forward Compatibility of the
 * image is used or hidden (compat.h). The hook needs no ldconfig, in the image or on the host.
 *
 * An image with neither a cache nor glibc's loader (musl, static programs) stays as it is, also one without /etc or with a volume
 * there. What the kernel refuses without such a reason ends the creation of the container: runtimes show a hook's message only
 * then, and a program that misses libcuda later does not say why.
 *
 * The runtime makes the root read-only after the hooks of this stage, where a pod asks for that: runc, rootfs_linux.go. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache.h"
#include "compat.h"
#include "root.h"

#define ETC "etc"
#define NAME "ld.so.cache"
#define CACHE ETC "/" NAME
#define NEW ".ld.so.cache.lading"
#define MAX_ARGUMENTS 1024

#if defined(__x86_64__)
#define LOADER "lib64/ld-linux-x86-64.so.2"
#else
#define LOADER "lib/ld-linux-aarch64.so.1"
#endif

static bool exists(int root, const char *path) {
    int fd = open_below(root, path, O_PATH, false);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* Add the image's cache. `*as_it_is`: the image has no use for a cache, or one that this program had better not change. */
static bool read_image(int root, struct cache *cache, bool *as_it_is) {
    uint8_t *bytes = calloc(1, LARGEST_CACHE + 1);
    int fd = open_below(root, CACHE, O_RDONLY | O_NONBLOCK, true);
    if (!bytes || (fd < 0 && !is_absent() && errno != ENXIO)) return complain("read", "/" CACHE);
    if (fd < 0) {
        *as_it_is = errno == EXDEV || !exists(root, LOADER);
        return true;
    }
    ssize_t size = read_all(fd, bytes, LARGEST_CACHE);
    close(fd);
    if (size < 0) {
        *as_it_is = errno == EFBIG || errno == EINVAL || errno == EISDIR;
        return *as_it_is || complain("read", "/" CACHE);
    }
    add_cache(cache, bytes, (size_t)size);
    return true;
}

static bool write_new(int etc, const uint8_t *bytes, size_t size) {
    unlinkat(etc, NEW, 0); /* of a hook that was killed */
    int fd = openat(etc, NEW, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) return false;
    while (size > 0) {
        ssize_t some = write(fd, bytes, size);
        if (some < 0 && errno != EINTR) break;
        if (some > 0) bytes += some, size -= (size_t)some;
    }
    bool written = !size && !fchmod(fd, 0644);
    int error = errno;
    close(fd);
    errno = error;
    return written && !renameat(etc, NEW, etc, NAME);
}

static bool write_cache(int root, struct cache *cache) {
    int etc = open_below(root, ETC, O_PATH | O_DIRECTORY, true);
    if (etc < 0) return is_absent() || complain("open", "/" ETC);
    size_t size = render_cache(cache, NULL);
    uint8_t *bytes = malloc(size);
    if (bytes) render_cache(cache, bytes);
    if (bytes && write_new(etc, bytes, size)) return true;
    int error = errno;
    unlinkat(etc, NEW, 0);
    errno = error;
    complain("write", "/" CACHE);
    return error == EROFS || error == EBUSY; /* a root that the runtime itself may not write, or a file that is mounted there */
}

static int usage(void) {
    fputs("usage: lading-ldcache --driver VERSION [--no-compat] LIBRARY...\n", stderr);
    return 2;
}

int main(int argc, char **argv) {
    struct cache cache = {.entries = calloc(MAX_ENTRIES, sizeof *cache.entries)};
    bool as_it_is = false;
    if (argc < 3 || argc > MAX_ARGUMENTS || strcmp(argv[1], "--driver") || !*argv[2] || !cache.entries) return usage();
    bool compat = argc < 4 || strcmp(argv[3], "--no-compat");
    int root = open_root();
    if (root < 0) return 1;
    if (!exists(root, ".") && errno == ENOSYS) { /* before Linux 5.6 only what a share depends on is worth a refusal */
        return complain("open folders of the image", "without openat2") || compat ? 0 : 1;
    }
    if (!choose_compat(root, compat ? argv[2] : NULL, &cache)) return 1;
    for (char **path = argv + (compat ? 3 : 4); *path; path++) {
        if (**path != '/' || strlen(*path) >= PATH_MAX) return usage();
        add_library(&cache, *path);
    }
    if (!read_image(root, &cache, &as_it_is)) return 1;
    return as_it_is || write_cache(root, &cache) ? 0 : 1;
}
