/* Source: protobuf.dev/programming-guides/encoding. Groups, which proto3 has not, are malformed. */

#include "protobuf.h"

#include <stdlib.h>
#include <string.h>

#define LARGEST_FIELD ((1u << 29) - 1)
#define VARINT_BYTES 10

static bool take_varint(struct bytes *message, uint64_t *value) {
    *value = 0;
    for (unsigned i = 0; i < VARINT_BYTES && i < message->size; i++) {
        uint8_t byte = message->at[i];
        if (i == VARINT_BYTES - 1 && byte > 1) return false; /* more than 64 bits */
        *value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            message->at += i + 1;
            message->size -= i + 1;
            return true;
        }
    }
    return false;
}

static bool take(struct bytes *message, uint64_t size, struct bytes *found) {
    if (size > message->size) return false;
    *found = (struct bytes){message->at, (size_t)size};
    message->at += size;
    message->size -= (size_t)size;
    return true;
}

static bool take_value(struct bytes *message, struct field *found) {
    uint64_t size;
    switch (found->kind) {
    case VARINT: return take_varint(message, &found->value);
    case BYTES: return take_varint(message, &size) && take(message, size, &found->bytes);
    case FIXED64: return take(message, 8, &found->bytes);
    case FIXED32: return take(message, 4, &found->bytes);
    default: return false;
    }
}

enum next next_field(struct bytes *message, struct field *found) {
    uint64_t tag;
    if (message->size == 0) return END;
    if (!take_varint(message, &tag) || tag >> 3 == 0 || tag >> 3 > LARGEST_FIELD) return MALFORMED;
    *found = (struct field){.number = (uint32_t)(tag >> 3), .kind = (enum kind)(tag & 7)};
    return take_value(message, found) ? FOUND : MALFORMED;
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
