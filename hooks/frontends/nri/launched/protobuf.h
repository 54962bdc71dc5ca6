/* The wire format of protocol buffers, as far as the guard needs it. Nothing is copied: what is read points into the message. */
#ifndef LADING_PROTOBUF_H
#define LADING_PROTOBUF_H

#include "bytes.h"

enum kind { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

struct field {
    uint32_t number;
    enum kind kind;
    uint64_t value;     /* of VARINT */
    struct bytes bytes; /* of BYTES */
};

enum next { MALFORMED = -1, END = 0, FOUND = 1 };

/* Take the next field off the front of a message. */
enum next next_field(struct bytes *message, struct field *found);

/* What is written: it must have room for all of it, which the callers' messages, of known lengths, have. */
struct output {
    uint8_t *at;
    size_t size, room;
};

void put_raw(struct output *out, const void *bytes, size_t size);
void put_number(struct output *out, uint32_t field, uint64_t value);
void put_bytes(struct output *out, uint32_t field, struct bytes value);

#endif
