/* The cache of glibc's loader: names of libraries, each with a path, in the order in which the loader's binary search needs them. */
#ifndef LADING_CACHE_H
#define LADING_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_ENTRIES 65536u
#define MAX_HWCAPS 64u
#define LARGEST_CACHE (8u << 20) /* the largest images have about 0.3 MiB */

struct entry {
    uint32_t flags, osversion;
    uint64_t hwcap;
    const char *name, *path;
    size_t place; /* order among entries of one name */
};

struct cache {
    struct entry *entries; /* room for MAX_ENTRIES */
    size_t count;
    const char *hwcaps[MAX_HWCAPS]; /* names of folders below glibc-hwcaps, to which entries refer by their index */
    size_t hwcaps_count;
};

/* Add a library of this machine's architecture. Ignore a name and path that are there already, as in a container that is started
 * again. Return false without room. */
bool add_library(struct cache *cache, const char *path);

/* Add the entries of a cache, whose bytes are followed by a null byte and have to outlive the entries. Ignore entries of libraries
 * that are there already, and damaged ones. Return false if the bytes are no cache that this program reads. */
bool add_cache(struct cache *cache, const uint8_t *bytes, size_t size);

/* Return the number of bytes of the rendered cache; they are written where `out` is not NULL. Sorts the entries. */
size_t render_cache(struct cache *cache, uint8_t *out);

/* Compare two names as the loader does: digits by their number. */
int compare_names(const char *one, const char *other);

#endif
