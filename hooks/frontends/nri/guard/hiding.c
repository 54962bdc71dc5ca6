/* Source: containerd/nri, pkg/api/api.proto (ContainerAdjustment, KeyValue). */

#include "hiding.h"

enum { ENV = 4, KEY = 1, VALUE_OF_KEY = 2 }; /* numbers of fields */

static const char *hidden[MAX_HIDDEN], *exempted = "";
static unsigned count;

static size_t name_size(const char *variable) { return strcspn(variable, "="); }

bool hide(const char *variable) {
    if (count == MAX_HIDDEN || !variable[name_size(variable)] || strlen(variable) >= MAX_VARIABLE) return false;
    hidden[count++] = variable;
    return true;
}

void exempt(const char *namespaces) { exempted = namespaces; }

bool is_exempt(struct bytes namespace) {
    for (const char *at = exempted; *at; at += strspn(at, ",")) {
        size_t size = strcspn(at, ",");
        if (namespace.size == size && !memcmp(namespace.at, at, size)) return true;
        at += size;
    }
    return false;
}

unsigned find_shown(struct bytes entry) {
    for (unsigned i = 0; i < count; i++) {
        size_t size = name_size(hidden[i]);
        bool named = entry.size >= size && !memcmp(entry.at, hidden[i], size) && (entry.size == size || entry.at[size] == '=');
        if (named && !equal(entry, hidden[i])) return 1u << i;
    }
    return 0;
}

void put_hidden(struct output *out, unsigned shown) {
    for (unsigned i = 0; i < count; i++) {
        uint8_t bytes[MAX_VARIABLE + 16];
        struct output pair = {bytes, 0, sizeof bytes};
        size_t size = name_size(hidden[i]);
        if (!(shown & 1u << i)) continue;
        put_bytes(&pair, KEY, (struct bytes){(const uint8_t *)hidden[i], size});
        put_bytes(&pair, VALUE_OF_KEY, text(hidden[i] + size + 1));
        put_bytes(out, ENV, (struct bytes){pair.at, pair.size});
    }
}
