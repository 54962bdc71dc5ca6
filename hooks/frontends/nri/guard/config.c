/* Sources: OCI runtime-spec, config.md (annotations); containerd, internal/cri/annotations (the type of a container). */

#include "config.h"

#include "json.h"

#define TYPE "io.kubernetes.cri.container-type"
#define SANDBOX "sandbox"

static bool read_annotations(struct cursor *json, struct config *found) {
    struct bytes name, value;
    bool first = true, whole;
    if (skip_word(json, "null")) return true;
    if (!take(json, "{")) return false;
    while (next_element(json, "}", &first, &whole)) {
        if (!take_name(json, &name) || !take_text(json, &value)) return false;
        found->keys |= find_keys(name);
        if (equal(name, TYPE)) found->sandbox = equal(value, SANDBOX);
    }
    return whole;
}

bool read_config(uint8_t *bytes, size_t size, struct config *found) {
    struct cursor json = {bytes, bytes + size};
    struct bytes name;
    bool first = true, whole, annotated = false;
    *found = (struct config){0};
    skip_space(&json);
    if (!take(&json, "{")) return false;
    while (next_element(&json, "}", &first, &whole)) {
        if (!take_name(&json, &name)) return false;
        if (!equal(name, "annotations")) {
            if (!skip_value(&json, DEEPEST)) return false;
        } else if (annotated || !read_annotations(&json, found)) { /* of two, it is not defined which ones count */
            return false;
        } else {
            annotated = true;
        }
    }
    skip_space(&json);
    return whole && json.at == json.end;
}
