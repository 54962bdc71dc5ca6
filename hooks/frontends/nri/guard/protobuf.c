/* Source: protobuf.dev/programming-guides/encoding. Groups, which proto3 has not, are malformed. */

#include "protobuf.h"

#include <stdlib.h>
#include <string.h>

#define LARGEST_FIELD ((1u << 29) - 1)
#define VARINT_BYTES 10

void begin_message(struct reader *reader, const struct fields *fields, uint64_t size) {
    *reader = (struct reader){.fields = fields, .path[0].left = size};
}

bool is_whole(const struct reader *reader) {
    return !reader->damaged && reader->depth == 0 && reader->path[0].left == 0 && reader->left == 0 && reader->next == TAG &&
           reader->shift == 0;
}

/* A field has ended, and with it the messages that it ends. */
static void end_field(struct reader *reader) {
    reader->next = TAG;
    while (reader->depth > 0 && reader->path[reader->depth].left == 0) {
        reader->fields->ended(reader);
        reader->depth--;
    }
}

static void end_value(struct reader *reader) {
    if (reader->action == KEEP) reader->fields->text(reader, (struct bytes){reader->text, reader->kept});
    end_field(reader);
}

static void begin_value(struct reader *reader, uint64_t size) {
    if (size > reader->path[reader->depth].left) {
        reader->damaged = true;
        return;
    }
    reader->path[reader->depth].left -= size;
    if (reader->action == ENTER) {
        reader->depth++;
        reader->path[reader->depth].number = reader->field;
        reader->path[reader->depth].left = size;
        end_field(reader);
        return;
    }
    reader->left = size;
    if (reader->action == KEEP) reader->kept = 0;
    if (size == 0) end_value(reader);
}

static void begin_field(struct reader *reader, uint64_t tag) {
    reader->field = (uint32_t)(tag >> 3);
    reader->kind = (enum kind)(tag & 7);
    bool known = reader->kind == VARINT || reader->kind == BYTES || reader->kind == FIXED64 || reader->kind == FIXED32;
    if (tag >> 3 == 0 || tag >> 3 > LARGEST_FIELD || !known) {
        reader->damaged = true;
        return;
    }
    reader->action = reader->fields->begins(reader, reader->field, reader->kind);
    if (reader->action == REFUSE || (reader->action == ENTER && reader->depth + 1 == DEEPEST)) {
        reader->damaged = true;
    } else if (reader->kind == FIXED64 || reader->kind == FIXED32) {
        begin_value(reader, reader->kind == FIXED64 ? 8 : 4);
    } else {
        reader->next = VALUE;
    }
}

static void take_varint(struct reader *reader) {
    uint64_t value = reader->varint;
    reader->varint = 0;
    reader->shift = 0;
    if (reader->next == TAG) {
        begin_field(reader, value);
    } else if (reader->kind == BYTES) {
        begin_value(reader, value);
    } else {
        if (reader->action == KEEP) reader->fields->number(reader, value);
        end_field(reader);
    }
}

static void take_byte(struct reader *reader, uint8_t byte) {
    if (reader->path[reader->depth].left == 0 || (reader->shift == 7 * (VARINT_BYTES - 1) && byte > 1)) {
        reader->damaged = true; /* the message ends in the middle of a field, or the number has more than 64 bits */
        return;
    }
    reader->path[reader->depth].left--;
    reader->varint |= (uint64_t)(byte & 0x7f) << reader->shift;
    reader->shift += 7;
    if (byte < 0x80) take_varint(reader);
}

static size_t take_value(struct reader *reader, const uint8_t *at, size_t size) {
    size_t some = reader->left < size ? (size_t)reader->left : size;
    if (reader->action == KEEP) {
        size_t kept = KEPT - reader->kept < some ? KEPT - reader->kept : some;
        memcpy(reader->text + reader->kept, at, kept);
        reader->kept += kept;
    }
    reader->left -= some;
    if (reader->left == 0) end_value(reader);
    return some;
}

void read_part(struct reader *reader, const uint8_t *at, size_t size) {
    while (size > 0 && !reader->damaged) {
        size_t some = 1;
        if (reader->left) some = take_value(reader, at, size);
        else take_byte(reader, *at);
        at += some, size -= some;
    }
}

void put_raw(struct output *out, const void *bytes, size_t size) {
    if (size > out->room - out->size) abort();
    if (size) memcpy(out->at + out->size, bytes, size);
    out->size += size;
}

static void put_varint(struct output *out, uint64_t value) {
    uint8_t bytes[VARINT_BYTES];
    size_t size = 0;
    for (; value >= 0x80; value >>= 7) bytes[size++] = (uint8_t)(value | 0x80);
    bytes[size++] = (uint8_t)value;
    put_raw(out, bytes, size);
}

void put_number(struct output *out, uint32_t field, uint64_t value) {
    put_varint(out, field << 3 | VARINT);
    put_varint(out, value);
}

void put_bytes(struct output *out, uint32_t field, struct bytes value) {
    put_varint(out, field << 3 | BYTES);
    put_varint(out, value.size);
    put_raw(out, value.at, value.size);
}
