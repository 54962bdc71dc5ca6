/* Source: OCI runtime-spec, runtime.md (State), config.md (root, hooks); openat2(2). */

#include "root.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "json.h"

#ifndef OPENAT2
#define OPENAT2 437 /* SYS_openat2, the same on each architecture */
#endif

#define LARGEST (16u << 20) /* of a configuration; what the API server keeps of a pod is a tenth of that */
#define TRIES 32            /* the kernel wants another one when folders are renamed meanwhile */

static uint8_t json_bytes[LARGEST];

bool complain(const char *verb, const char *object) {
    fprintf(stderr, "lading-ldcache: cannot %s %s: %s\n", verb, object, strerror(errno));
    return false;
}

int open_below(int root, const char *path, int flags, bool own) {
    struct open_how how = {
        .flags = (uint64_t)(flags | O_CLOEXEC),
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | (own ? RESOLVE_NO_XDEV : 0),
    };
    long fd = -1;
    for (int i = 0; i < TRIES; i++) {
        fd = syscall(OPENAT2, root, path, &how, sizeof how);
        if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) break;
    }
    return (int)fd;
}

bool is_absent(void) { return errno == ENOENT || errno == ENOTDIR || errno == ELOOP || errno == EXDEV; }

static ssize_t read_some(int fd, uint8_t *bytes, size_t room) {
    size_t size = 0;
    while (size < room) {
        ssize_t some = read(fd, bytes + size, room - size);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) return some < 0 ? -1 : (ssize_t)size;
        size += (size_t)some;
    }
    errno = EFBIG;
    return -1;
}

ssize_t read_all(int fd, uint8_t *bytes, size_t room) {
    struct stat status;
    if (fstat(fd, &status)) return -1;
    if (!S_ISREG(status.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    return read_some(fd, bytes, room);
}

/* Read a text of an object, which may be in another object: "bundle", or "root" and "path" in it. */
static bool read_path(struct cursor *json, const char *const *names, char *path) {
    struct bytes name, text;
    bool first = true, whole, found = false;
    skip_space(json);
    if (!take(json, "{")) return false;
    while (next_element(json, "}", &first, &whole)) {
        if (!take_name(json, &name)) return false;
        if (!equal(name, *names)) {
            if (!skip_value(json, DEEPEST)) return false;
        } else if (names[1]) {
            if (!read_path(json, names + 1, path)) return false;
            found = true;
        } else {
            if (!take_text(json, &text) || text.size >= PATH_MAX || memchr(text.at, 0, text.size)) return false;
            memcpy(path, text.at, text.size);
            path[text.size] = '\0';
            found = true;
        }
    }
    return whole && found;
}

static bool parse_path(ssize_t size, const char *const *names, char *path) {
    struct cursor json = {json_bytes, json_bytes + (size < 0 ? 0 : size)};
    if (size >= 0 && read_path(&json, names, path)) return true;
    if (size >= 0) errno = EINVAL;
    return false;
}

int open_root(void) {
    char bundle[PATH_MAX], path[2 * PATH_MAX], root[PATH_MAX];
    ssize_t size = read_some(STDIN_FILENO, json_bytes, sizeof json_bytes);
    if (!parse_path(size, (const char *const[]){"bundle", NULL}, bundle)) {
        return complain("read", "the container's state on standard input") - 1;
    }
    snprintf(path, sizeof path, "%s/config.json", bundle);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    size = fd < 0 ? -1 : read_all(fd, json_bytes, sizeof json_bytes);
    if (!parse_path(size, (const char *const[]){"root", "path", NULL}, root)) return complain("read", path) - 1;
    close(fd);
    snprintf(path, sizeof path, "%s%s%s", root[0] == '/' ? "" : bundle, root[0] == '/' ? "" : "/", root);
    fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) complain("open", path);
    return fd;
}
