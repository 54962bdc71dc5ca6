#include "rule.h"

#include "texts.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const prefixes[] = PREFIXES;
static const char *const reserved[] = RESERVED;
static const struct refusal refusals[] = REFUSALS;
static const uint8_t verdicts[][GUARDED << (COUNT(reserved) + 1)] = VERDICTS; /* by pod and container; the index of a refusal */

unsigned find_keys(struct bytes key) {
    unsigned found = 0;
    for (size_t i = 0; i < COUNT(prefixes); i++) {
        if (begins(key, prefixes[i])) found |= GUARDED;
    }
    for (size_t i = 0; i < COUNT(reserved); i++) {
        if (equal(key, reserved[i])) found |= GUARDED << (i + 1);
    }
    return found;
}

struct refusal decide(unsigned pod, unsigned container) { return refusals[verdicts[pod][container]]; }
