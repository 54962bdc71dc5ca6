#include "rule.h"

#include "texts.h"

static const char *const prefixes[] = PREFIXES;

void note(struct keys *found, struct bytes key) {
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) found->guarded |= begins(key, prefixes[i]);
    found->grant |= equal(key, GRANT);
    found->attachments |= equal(key, ATTACHMENTS);
}

struct refusal decide(struct keys pod, struct keys container) {
    if (pod.grant) return (struct refusal){RESERVED, RESERVED_GRANT};
    if (pod.attachments) return (struct refusal){RESERVED, RESERVED_ATTACHMENTS};
    if (pod.guarded && !container.grant) return (struct refusal){UNGRANTED, UNGRANTED_TEXT};
    return (struct refusal){0};
}
