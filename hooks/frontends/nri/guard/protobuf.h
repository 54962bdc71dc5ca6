/* The wire format of protocol buffers, as far as NRI needs it. A message is read while its bytes arrive: of a text the
 * beginning is kept, and nothing else, so that messages may have any size. */
#ifndef LADING_PROTOBUF_H
#define LADING_PROTOBUF_H

#include "bytes.h"

enum kind { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* What to do with a field: KEEP calls number_read or text_read with its value, ENTER reads it as a message. */
enum action { SKIP, KEEP, ENTER, REFUSE };

#define DEEPEST 5   /* messages in each other that are read */
#define KEPT 512    /* bytes of a text; all names that are looked for are shorter */

struct reader;

/* Who reads the messages of one kind. */
struct fields {
    enum action (*begins)(struct reader *reader, uint32_t field, enum kind kind); /* a field of the message at `depth` */
    void (*number)(struct reader *reader, uint64_t value);
    void (*text)(struct reader *reader, struct bytes text);
    void (*ended)(struct reader *reader); /* the message at `depth`, which is not 0 */
};

struct reader {
    const struct fields *fields;
    unsigned depth; /* of the message that is read now; the whole one has 0 */
    struct {
        uint32_t number; /* of the field that the message is; of the whole one 0 */
        uint64_t left;   /* bytes that have not come, without those of the field that is read now */
    } path[DEEPEST];
    bool damaged; /* the message cannot be read; its other bytes are skipped */
    uint32_t field; /* that is read now */
    enum kind kind;
    enum action action;
    enum { TAG, VALUE } next; /* what the varint that is read now is */
    uint64_t varint;
    unsigned shift;
    uint64_t left; /* bytes of the field's value that have not come */
    size_t kept;
    uint8_t text[KEPT]; /* that was kept last */
};

/* Begin with a message of this size. */
void begin_message(struct reader *reader, const struct fields *fields, uint64_t size);
/* Read the next bytes of the message: not more than its size. */
void read_part(struct reader *reader, const uint8_t *at, size_t size);
/* Return whether the message was read to its end. */
bool is_whole(const struct reader *reader);

/* What is written: it must have room for all of it, which the callers' messages, of known lengths, have. */
struct output {
    uint8_t *at;
    size_t size, room;
};

void put_raw(struct output *out, const void *bytes, size_t size);
void put_number(struct output *out, uint32_t field, uint64_t value);
void put_bytes(struct output *out, uint32_t field, struct bytes value);

#endif
