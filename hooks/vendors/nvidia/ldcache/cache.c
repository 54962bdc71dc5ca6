/* Source: glibc, sysdeps/generic/dl-cache.h (the format glibc-ld.so.cache1.1, and its extensions), elf/dl-cache.c (the search).
 * Numbers have the order of bytes of the machine. A cache written by glibc before 2.32 has another, older one before it. */

#include "cache.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "glibc-ld.so.cache1.1"
#define OLD_MAGIC "ld.so-1.7.0"
#define EXTENSIONS 0xeaa42174u
#define HWCAPS 1u                  /* tag of the extension that has the names of hwcaps */
#define REFERS (1ull << 62)        /* bit of an entry whose lower half of hwcap is an index of a name */
#define LITTLE_ENDIAN_FLAG 2u
#define HEADER 48u
#define ENTRY 24u
#define SECTION 16u

#if defined(__x86_64__)
#define LIBRARY_FLAGS 0x0303u /* FLAG_ELF_LIBC6 | FLAG_X8664_LIB64 */
#elif defined(__aarch64__)
#define LIBRARY_FLAGS 0x0a03u /* FLAG_ELF_LIBC6 | FLAG_AARCH64_LIB64 */
#else
#error "the cache's flags of this architecture are not known"
#endif

struct view {
    const uint8_t *bytes;
    size_t size;
};

static uint32_t number_at(const uint8_t *at) {
    uint32_t number;
    memcpy(&number, at, sizeof number);
    return number;
}

static void put_number(uint8_t *at, size_t number) {
    uint32_t narrow = (uint32_t)number;
    memcpy(at, &narrow, sizeof narrow);
}

static bool is_digit(char one) { return one >= '0' && one <= '9'; }

/* Take a number as the loader does, whose arithmetic wraps. */
static int take_digits(const char **at) {
    uint32_t number = 0;
    while (is_digit(**at)) number = number * 10 + (uint32_t)(*(*at)++ - '0');
    return (int)number;
}

int compare_names(const char *one, const char *other) {
    while (*one) {
        if (is_digit(*one) != is_digit(*other)) return is_digit(*one) ? 1 : -1;
        if (is_digit(*one)) {
            uint32_t first = (uint32_t)take_digits(&one), second = (uint32_t)take_digits(&other);
            if (first != second) return (int)(first - second);
        } else if (*one != *other) {
            return *one - *other;
        } else {
            one++, other++;
        }
    }
    return *one - *other;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool has(const struct cache *cache, size_t count, uint32_t flags, const char *name, const char *path) {
    for (size_t i = 0; i < count; i++) {
        const struct entry *one = &cache->entries[i];
        if (one->flags == flags && !strcmp(one->name, name) && !strcmp(one->path, path)) return true;
    }
    return false;
}

static bool add(struct cache *cache, struct entry entry) {
    if (cache->count == MAX_ENTRIES) return false;
    entry.place = cache->count;
    cache->entries[cache->count++] = entry;
    return true;
}

bool add_library(struct cache *cache, const char *path) {
    const char *name = base_name(path);
    if (has(cache, cache->count, LIBRARY_FLAGS, name, path)) return true;
    return add(cache, (struct entry){.flags = LIBRARY_FLAGS, .name = name, .path = path});
}

/* Return a text of the cache; NULL if it is not inside, or is too long for a path. */
static const char *text_at(struct view view, uint32_t offset) {
    if (offset >= view.size) return NULL;
    const char *text = (const char *)view.bytes + offset;
    return strlen(text) < PATH_MAX ? text : NULL; /* a null byte is after the last one */
}

/* Return the cache of the new format; of size 0 if there is none. */
static struct view find_new(struct view file) {
    size_t start = 0;
    if (file.size >= 16 && !memcmp(file.bytes, OLD_MAGIC, strlen(OLD_MAGIC))) {
        start = (16 + 12 * (size_t)number_at(file.bytes + 12) + 7) / 8 * 8;
    }
    if (start > file.size || file.size - start < HEADER) return (struct view){0};
    struct view found = {file.bytes + start, file.size - start};
    uint8_t order = found.bytes[28] & 3;
    bool readable = !memcmp(found.bytes, MAGIC, strlen(MAGIC)) && (order == 0 || order == LITTLE_ENDIAN_FLAG);
    return readable && number_at(found.bytes + 20) <= (found.size - HEADER) / ENTRY ? found : (struct view){0};
}

/* Read the names of hwcaps; none if one of them is damaged. */
static void read_hwcaps(struct cache *cache, struct view view) {
    size_t start = number_at(view.bytes + 32);
    if (start == 0 || start % 4 || start > view.size || view.size - start < 8) return;
    const uint8_t *at = view.bytes + start;
    size_t sections = number_at(at + 4);
    if (number_at(at) != EXTENSIONS || sections > (view.size - start - 8) / SECTION) return;
    for (at += 8; sections > 0; sections--, at += SECTION) {
        size_t offset = number_at(at + 8), size = number_at(at + 12), count = size / 4;
        bool inside = offset <= view.size && size <= view.size - offset && count <= MAX_HWCAPS;
        if (number_at(at) != HWCAPS || !inside) continue;
        for (size_t i = 0; i < count; i++) {
            cache->hwcaps[i] = text_at(view, number_at(view.bytes + offset + 4 * i));
            if (!cache->hwcaps[i]) return;
        }
        cache->hwcaps_count = count;
        return;
    }
}

bool add_cache(struct cache *cache, const uint8_t *bytes, size_t size) {
    struct view view = find_new((struct view){bytes, size});
    size_t ours = cache->count;
    if (!view.size) return false;
    read_hwcaps(cache, view);
    const uint8_t *at = view.bytes + HEADER;
    for (uint32_t left = number_at(view.bytes + 20); left > 0; left--, at += ENTRY) {
        struct entry entry = {.flags = number_at(at), .osversion = number_at(at + 12)};
        memcpy(&entry.hwcap, at + 16, sizeof entry.hwcap);
        entry.name = text_at(view, number_at(at + 4));
        entry.path = text_at(view, number_at(at + 8));
        bool damaged = !entry.name || !entry.path || ((entry.hwcap & REFERS) && (uint32_t)entry.hwcap >= cache->hwcaps_count);
        if (damaged || has(cache, ours, entry.flags, entry.name, entry.path)) continue;
        if (!add(cache, entry)) return true;
    }
    return true;
}

/* The loader's search expects the greatest name first. Of one name it takes the first entry that fits. */
static int in_order(const void *one, const void *other) {
    const struct entry *first = one, *second = other;
    int result = compare_names(second->name, first->name);
    return result ? result : first->place < second->place ? -1 : 1;
}

static size_t put_text(uint8_t *out, size_t at, const char *text) {
    size_t size = strlen(text) + 1;
    if (out) memcpy(out + at, text, size);
    return at + size;
}

static void put_entry(uint8_t *at, const struct entry *entry, size_t name, size_t path) {
    put_number(at, entry->flags);
    put_number(at + 4, name);
    put_number(at + 8, path);
    put_number(at + 12, entry->osversion);
    memcpy(at + 16, &entry->hwcap, sizeof entry->hwcap);
}

static size_t put_hwcaps(const struct cache *cache, uint8_t *out, size_t names, size_t end) {
    size_t directory = (end + 3) / 4 * 4, indices = directory + 8 + SECTION, size = 4 * cache->hwcaps_count;
    if (!out) return indices + size;
    memset(out + end, 0, indices - end);
    put_number(out + 32, directory);
    put_number(out + directory, EXTENSIONS);
    put_number(out + directory + 4, 1);
    put_number(out + directory + 8, HWCAPS);
    put_number(out + directory + 16, indices);
    put_number(out + directory + 20, size);
    for (size_t i = 0; i < cache->hwcaps_count; i++) {
        put_number(out + indices + 4 * i, names);
        names += strlen(cache->hwcaps[i]) + 1;
    }
    return indices + size;
}

size_t render_cache(struct cache *cache, uint8_t *out) {
    size_t strings = HEADER + ENTRY * cache->count, end = strings;
    qsort(cache->entries, cache->count, sizeof *cache->entries, in_order);
    for (size_t i = 0; i < cache->count; i++) {
        const struct entry *entry = &cache->entries[i];
        size_t path = end, name = path + (size_t)(base_name(entry->path) - entry->path); /* mostly the end of the path */
        end = put_text(out, end, entry->path);
        if (strcmp(base_name(entry->path), entry->name)) {
            name = end;
            end = put_text(out, end, entry->name);
        }
        if (out) put_entry(out + HEADER + ENTRY * i, entry, name, path);
    }
    size_t names = end;
    for (size_t i = 0; i < cache->hwcaps_count; i++) end = put_text(out, end, cache->hwcaps[i]);
    if (out) {
        memset(out, 0, HEADER);
        memcpy(out, MAGIC, strlen(MAGIC));
        put_number(out + 20, cache->count);
        put_number(out + 24, end - strings);
        out[28] = LITTLE_ENDIAN_FLAG;
    }
    return cache->hwcaps_count ? put_hwcaps(cache, out, names, end) : end;
}
