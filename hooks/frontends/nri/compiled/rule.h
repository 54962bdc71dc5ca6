/* The rule of the Python guard (../guard.py): which container may not be. */
#ifndef LADING_RULE_H
#define LADING_RULE_H

#include "bytes.h"

/* Which annotations there are, of a pod or of a container. */
struct keys {
    bool guarded, grant, attachments;
};

void note(struct keys *found, struct bytes key);

struct refusal {
    int status; /* 0: the container may be */
    const char *text;
};

struct refusal decide(struct keys pod, struct keys container);

#endif
