/* Bytes of a message, which are not copied. */
#ifndef LADING_BYTES_H
#define LADING_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes {
    const uint8_t *at;
    size_t size;
};

static inline struct bytes text(const char *chars) { return (struct bytes){(const uint8_t *)chars, strlen(chars)}; }

static inline bool begins(struct bytes one, const char *with) {
    return one.size >= strlen(with) && !memcmp(one.at, with, strlen(with));
}

static inline bool equal(struct bytes one, const char *other) { return one.size == strlen(other) && begins(one, other); }

#endif
