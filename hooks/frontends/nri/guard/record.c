/* Source: systemd, "Native Journal Protocol". */

#include "record.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "texts.h"

#define MAX_MESSAGE 1024
#define FIELDS "plugin=" INDEX "-" NAME " version=" VERSION
#define JOURNAL_FIELDS "SYSLOG_IDENTIFIER=" LOG_NAME "\nLADING_PLUGIN=" INDEX "-" NAME "\nLADING_VERSION=" VERSION "\n"

static enum priority least = INFO;
static int journal = -1;

static bool stderr_is_journal(void) {
    unsigned long device, inode;
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat status;
    if (!stream || sscanf(stream, "%lu:%lu", &device, &inode) != 2 || fstat(STDERR_FILENO, &status)) return false;
    return status.st_dev == device && status.st_ino == inode;
}

void open_log(enum priority priority) {
    least = priority;
    if (stderr_is_journal()) journal = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Write a text on one line, in printable ASCII; everything else is escaped. */
static void escape(char *to, size_t room, const char *from) {
    for (; *from && room > sizeof "\\x00"; from++) {
        bool plain = *from >= ' ' && *from <= '~' && *from != '"' && *from != '\\';
        int size = snprintf(to, room, plain ? "%c" : "\\x%02x", (unsigned char)*from);
        to += size, room -= (size_t)size;
    }
    *to = '\0';
}

static bool send_to_journal(enum priority priority, const char *event, const char *message) {
    char record[2 * MAX_MESSAGE];
    const char *form = "MESSAGE=%s " FIELDS " %s\nPRIORITY=%d\nLADING_EVENT=%s\n" JOURNAL_FIELDS;
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = JOURNAL_SOCKET};
    int size = snprintf(record, sizeof record, form, event, message, priority, event);
    return sendto(journal, record, (size_t)size, 0, (struct sockaddr *)&address, sizeof address) >= 0 || errno == EAGAIN;
}

static void write_line(const char *level, const char *event, const char *message) {
    char line[2 * MAX_MESSAGE]; /* a pipe with room takes all of it: PIPE_BUF bytes */
    struct pollfd out = {STDERR_FILENO, POLLOUT, 0};
    int size = snprintf(line, sizeof line, "level=%s event=%s " FIELDS "%s%s%s\n", level, event, *message ? " msg=\"" : "", message,
                        *message ? "\"" : "");
    if (poll(&out, 1, 0) == 1 && write(STDERR_FILENO, line, (size_t)size) < 0) return;
}

void write_record(enum priority priority, const char *event, const char *message) {
    char escaped[MAX_MESSAGE];
    if (priority > least) return;
    escape(escaped, sizeof escaped, message);
    if (journal >= 0 && send_to_journal(priority, event, escaped)) return;
    write_line(priority == WARNING ? "warning" : "info", event, escaped);
}
