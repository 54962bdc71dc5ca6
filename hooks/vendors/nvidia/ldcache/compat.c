/* A libcuda of the image works if it is of a newer branch than the node's driver; else CUDA ends with error 803.
 *
 * Source: NVIDIA, CUDA Compatibility ("Forward Compatibility"); NVIDIA/nvidia-container-toolkit, cmd/nvidia-cdi-hook/cudacompat
 * (the comparison of branches). Images of NGC have the libraries in `lib.real`, and link `lib` to it when they start. */

#include "compat.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "root.h"

#define PARENT "usr/local"
#define LIBCUDA "libcuda.so."
#define MAX_NAMES 4096
#define MAX_LIBRARIES 64
#define MAX_PATH 512

struct folder {
    int fd;
    struct stat status;
    char path[MAX_PATH];    /* below the root, of the folder itself */
    char libraries[MAX_PATH]; /* of the folder with libcuda */
    char version[64];       /* of libcuda; empty without one */
};

static const char *const inner[] = {"", "/lib.real", "/lib", NULL};

/* Call `visit` with each name of a folder, a bounded number of them. */
static void walk(int root, const char *path, void (*visit)(const char *name, void *context), void *context) {
    int fd = open_below(root, path, O_RDONLY | O_DIRECTORY, false);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        if (fd >= 0) close(fd);
        return;
    }
    struct dirent *one;
    for (int i = 0; i < MAX_NAMES && (one = readdir(folder)); i++) visit(one->d_name, context);
    closedir(folder);
}

static void keep_newest(const char *name, void *context) {
    char *newest = context;
    if (strncmp(name, LIBCUDA, strlen(LIBCUDA))) return;
    const char *version = name + strlen(LIBCUDA);
    if (!*version || strlen(version) >= sizeof ((struct folder *)0)->version || version[strspn(version, "0123456789.")]) return;
    if (compare_names(version, newest) > 0) strcpy(newest, version);
}

static void read_version(int root, struct folder *folder) {
    for (const char *const *below = inner; *below; below++) {
        char path[MAX_PATH], version[sizeof folder->version] = "";
        if (snprintf(path, sizeof path, "%s%s", folder->path, *below) >= (int)sizeof path) continue;
        walk(root, path, keep_newest, version);
        if (compare_names(version, folder->version) <= 0) continue;
        strcpy(folder->version, version);
        strcpy(folder->libraries, path);
    }
}

struct found {
    int root;
    size_t count;
    struct folder folders[MAX_FOLDERS];
};

static void open_compat(const char *name, void *context) {
    struct found *found = context;
    struct folder *folder = &found->folders[found->count];
    if (strncmp(name, "cuda", 4) || found->count == MAX_FOLDERS) return;
    if (snprintf(folder->path, sizeof folder->path, PARENT "/%s/compat", name) >= (int)sizeof folder->path) return;
    folder->fd = open_below(found->root, folder->path, O_PATH | O_DIRECTORY, false);
    if (folder->fd < 0) return;
    bool taken = fstat(folder->fd, &folder->status) != 0;
    for (size_t i = 0; i < found->count; i++) { /* /usr/local/cuda is a link to one of the others */
        const struct stat *other = &found->folders[i].status;
        taken |= other->st_dev == folder->status.st_dev && other->st_ino == folder->status.st_ino;
    }
    if (taken) {
        close(folder->fd);
        return;
    }
    read_version(found->root, folder);
    found->count++;
}

static bool hide(const struct folder *folder) {
    char target[64];
    snprintf(target, sizeof target, "/proc/self/fd/%d", folder->fd);
    unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    return !mount("lading", target, "tmpfs", flags, "size=4k,mode=755") || complain("hide the image's", folder->path);
}

struct listed {
    struct cache *cache;
    const char *folder;
    int left;
};

/* Add a library. Its path is never freed: the program ends before it would matter. */
static void list(const char *name, void *context) {
    struct listed *listed = context;
    char *path;
    if (strncmp(name, "lib", 3) || !strstr(name, ".so.") || !listed->left) return;
    if (strchr(strstr(name, ".so.") + strlen(".so."), '.')) return; /* a version, to which the name above is a link */
    if (asprintf(&path, "/%s/%s", listed->folder, name) < 0) return;
    listed->left--;
    add_library(listed->cache, path);
}

bool choose_compat(int root, const char *driver, struct cache *cache) {
    static struct found found;
    const struct folder *newest = NULL;
    found.root = root;
    walk(root, PARENT, open_compat, &found);
    for (size_t i = 0; i < found.count; i++) {
        const struct folder *folder = &found.folders[i];
        if (!*folder->version) continue;
        if (!driver || strtoul(folder->version, NULL, 10) <= strtoul(driver, NULL, 10)) {
            if (!hide(folder)) return false;
        } else if (!newest || compare_names(folder->version, newest->version) > 0) {
            newest = folder;
        }
    }
    if (newest) walk(root, newest->libraries, list, &(struct listed){cache, newest->libraries, MAX_LIBRARIES});
    return true;
}
