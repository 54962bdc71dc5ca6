/* A container's root folder before the container starts. Its image's symlinks are followed below it only. */
#ifndef LADING_ROOT_H
#define LADING_ROOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Open the root folder of the container whose state (OCI runtime specification) is on standard input. Return -1 with a message on
 * standard error. */
int open_root(void);

/* Open a path below the root. `own`: only on the file system of the root, so that no volume is changed. Return -1 with errno. */
int open_below(int root, const char *path, int flags, bool own);

/* Return whether errno says that the image does not have a path, or has it on a volume. */
bool is_absent(void);

/* Read all of a regular file into `bytes`. Return its size; -1 with errno, EFBIG if it does not fit. */
ssize_t read_all(int fd, uint8_t *bytes, size_t room);

/* Print what failed, with errno. Return false. */
bool complain(const char *verb, const char *object);

#endif
