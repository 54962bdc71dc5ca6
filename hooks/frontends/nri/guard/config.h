/* The annotations in a container's configuration, config.json of the OCI runtime specification. */
#ifndef LADING_CONFIG_H
#define LADING_CONFIG_H

#include "rule.h"

struct config {
    unsigned keys;
    bool sandbox; /* it is a pod's sandbox, which runs nothing of the pod */
};

/* Read all of a configuration. False: it is no JSON (RFC 8259), or its annotations are not names with texts. The bytes are
 * changed: escaped characters of texts are put in place of their escapes. */
bool read_config(uint8_t *bytes, size_t size, struct config *found);

#endif
