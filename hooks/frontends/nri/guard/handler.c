/* What containerd starts in place of runc for pods of the runtime handler `lading`: it makes no container of a guarded pod that
 * has no grant, whatever became of plugin and guards, and is runc for all else.
 *
 * It decides by its command line and config.json of the container alone, and becomes runc, the first in PATH, which is
 * containerd's. A container whose configuration it cannot read is refused. The configuration's annotations are those of the pod
 * that `pod_annotations` of the handler matches (program.py) together with those of the container, to which plugins have added.
 *
 * Source: containerd, cmd/containerd-shim-runc-v2/process/utils.go (what it reads of runc's log). */

#include "handler.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "config.h"
#include "rule.h"
#include "runc_call.h"
#include "texts.h"

#define LARGEST (16u << 20) /* of a configuration; what the API server keeps of a pod is a tenth of that */
#define FOLDERS "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" /* where PATH is not set */

/* Add a line to the log as runc does: the shim shows the last error in it. */
static void log_error(const char *path, const char *said) {
    char now[sizeof "2026-01-01T00:00:00Z"] = "", line[2 * PATH_MAX], *to = line;
    time_t seconds = time(NULL);
    struct tm parts;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) return; /* it is on stderr too */
    if (gmtime_r(&seconds, &parts)) strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &parts);
    to += sprintf(to, "{\"level\":\"error\",\"msg\":\"");
    for (; *said && to < line + sizeof line - 64; said++) {
        if ((unsigned char)*said < ' ' || *said == '"' || *said == '\\') {
            to += sprintf(to, "\\u%04x", (unsigned char)*said);
        } else {
            *to++ = *said;
        }
    }
    to += sprintf(to, "\",\"time\":\"%s\"}\n", now);
    if (write(fd, line, (size_t)(to - line)) < 0) perror(path);
    close(fd);
}

static int refuse(const struct runc_call *call, const char *said) {
    fprintf(stderr, "%s\n", said);
    if (call->log && call->json) log_error(call->log, said);
    return 1;
}

static int cannot(const struct runc_call *call, const char *what, const char *which, const char *why) {
    char said[2 * PATH_MAX];
    snprintf(said, sizeof said, RUNC_MARK VERSION ": cannot %s %s: %s", what, which, why);
    return refuse(call, said);
}

/* Read a file. Return its size; -1 with errno if it cannot be read, or is too large. */
static ssize_t read_file(const char *path, uint8_t *bytes, size_t room) {
    size_t size = 0;
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return -1;
    bool regular = !fstat(fd, &status) && S_ISREG(status.st_mode);
    ssize_t some = regular ? 1 : -1;
    if (!regular) errno = EINVAL;
    while (some > 0 && size < room) {
        some = read(fd, bytes + size, room - size);
        if (some < 0 && errno == EINTR) some = 1;
        else if (some > 0) size += (size_t)some;
    }
    if (some > 0) errno = EFBIG, some = -1;
    int error = errno;
    close(fd);
    errno = error;
    return some < 0 ? -1 : (ssize_t)size;
}

/* Return 0 if the container may be made; else it is refused. */
static int check(const struct runc_call *call) {
    static uint8_t bytes[LARGEST + 1];
    char path[PATH_MAX];
    struct config config;
    if (snprintf(path, sizeof path, "%s/config.json", call->bundle) >= (int)sizeof path) {
        return cannot(call, "read", call->bundle, strerror(ENAMETOOLONG));
    }
    ssize_t size = read_file(path, bytes, sizeof bytes);
    if (size < 0) return cannot(call, "read", path, strerror(errno));
    if (!read_config(bytes, (size_t)size, &config)) return cannot(call, "read", path, "it is no configuration of a container");
    if (config.sandbox) return 0;
    struct refusal refusal = decide(config.keys & GUARDED, config.keys);
    return refusal.status ? refuse(call, refusal.text) : 0;
}

/* Become the first runc in PATH that is not this program. */
static int become_runc(const struct runc_call *call, char **argv) {
    char path[PATH_MAX];
    struct stat self, other;
    const char *folders = getenv("PATH");
    if (stat("/proc/self/exe", &self)) return cannot(call, "read", "/proc/self/exe", strerror(errno));
    if (!folders || !*folders) folders = FOLDERS;
    for (const char *at = folders; *at; at += strspn(at, ":")) {
        int size = (int)strcspn(at, ":");
        bool fits = at[0] == '/' && snprintf(path, sizeof path, "%.*s/runc", size, at) < (int)sizeof path;
        at += size;
        if (!fits || stat(path, &other) || !S_ISREG(other.st_mode) || access(path, X_OK)) continue;
        if (other.st_dev == self.st_dev && other.st_ino == self.st_ino) continue;
        argv[0] = path;
        execv(path, argv);
        return cannot(call, "start", path, strerror(errno));
    }
    return cannot(call, "find", "runc", "it is in no folder of PATH");
}

int make_container(char **argv) {
    struct runc_call call = read_runc_call(argv + 1);
    if (call.unknown) return cannot(&call, "understand", call.unknown, "it is no option of runc that is known, or has no value");
    if (call.makes && check(&call)) return 1;
    return become_runc(&call, argv);
}
