/* Which container may not be created or started. The rule itself is in rule.py: the build asks it about each set of annotations,
 * and writes the verdicts as a table into texts.h. */
#ifndef LADING_RULE_H
#define LADING_RULE_H

#include "bytes.h"

/* Sets of annotations, of a pod or of a container. texts.h has GRANTED, the bit of the grant. */
#define GUARDED 1u

/* Return the bits of one annotation. */
unsigned find_keys(struct bytes key);

struct refusal {
    int status; /* 0: the container may be created and started */
    const char *text;
};

struct refusal decide(unsigned pod, unsigned container);

#endif
