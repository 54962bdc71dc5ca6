/* The runtime's calls, and the guard's answers. A call is read while its bytes arrive; of it is kept which annotations there are
 * and which variables show cards, so that a list of all pods may have any size. */
#ifndef LADING_CALLS_H
#define LADING_CALLS_H

#include "protobuf.h"

#define SERVICE "nri.pkg.api.v1alpha1."

extern const struct fields REQUEST_FIELDS;

struct answer {
    int status; /* 0: success */
    const char *text;
    struct bytes payload; /* until the next answer */
    bool synchronized;    /* from now on the runtime calls the guard for each new container, if the answer is in time */
    uint64_t timeout_ns;  /* after which the runtime gives up the call; 0: never */
};

/* Answer the call that was read, and forget it. `whole`: whether it could be read; a call that could not is refused, because the
 * runtime would go on without a guard that ended. */
struct answer answer_call(bool whole);

#endif
