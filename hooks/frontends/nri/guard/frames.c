/* Sources: containerd/nri, pkg/net/multiplex (u32 connection | u32 length); containerd/ttrpc, PROTOCOL.md (u32 length |
 * u32 stream | u8 type | u8 flags). All numbers are big-endian. A piece of a connection is no message: each connection is a
 * stream of its own. */

#include "frames.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "texts.h"

#define PIECE_HEADER sizeof(((struct frames *)0)->piece.header)
#define HEADER sizeof(((struct frames *)0)->streams->header)

static uint32_t number(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void put(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Move bytes to where some are missing. */
static size_t fill(uint8_t *to, size_t *have, size_t need, const uint8_t *from, size_t size) {
    size_t some = need - *have < size ? need - *have : size;
    memcpy(to + *have, from, some);
    *have += some;
    return some;
}

static bool begin(struct stream *stream, enum connection connection, const struct receiver *receiver) {
    stream->left = number(stream->header);
    if (stream->left > MAX_RECEIVED || stream->header[8] != (connection == TO_PLUGIN ? REQUEST : RESPONSE)) return false;
    begin_message(&stream->reader, receiver->fields, stream->left);
    return true;
}

static bool receive_piece(
    struct stream *stream, enum connection connection, const struct receiver *receiver, const uint8_t *bytes, size_t size
) {
    while (size > 0) {
        if (stream->have < HEADER) {
            size_t some = fill(stream->header, &stream->have, HEADER, bytes, size);
            bytes += some, size -= some;
            if (stream->have < HEADER) break;
            if (!begin(stream, connection, receiver)) return false;
        }
        size_t some = stream->left < size ? stream->left : size;
        read_part(&stream->reader, bytes, some);
        bytes += some, size -= some, stream->left -= (uint32_t)some;
        if (stream->left > 0) break;
        stream->have = 0;
        if (!receiver->received(number(stream->header + 4), &stream->reader)) return false;
    }
    return true;
}

bool receive(struct frames *frames, const struct receiver receivers[2], const uint8_t *bytes, size_t size) {
    struct piece *piece = &frames->piece;
    while (size > 0) {
        if (piece->left == 0) {
            size_t some = fill(piece->header, &piece->have, PIECE_HEADER, bytes, size);
            bytes += some, size -= some;
            if (piece->have < PIECE_HEADER) break;
            piece->have = 0;
            piece->left = number(piece->header + 4);
            if (number(piece->header) != TO_PLUGIN && number(piece->header) != TO_RUNTIME) return false;
            continue;
        }
        enum connection connection = (enum connection)number(piece->header);
        size_t some = piece->left < size ? piece->left : size, at = connection - TO_PLUGIN;
        if (!receive_piece(&frames->streams[at], connection, &receivers[at], bytes, some)) return false;
        bytes += some, size -= some, piece->left -= some;
    }
    return true;
}

bool is_idle(const struct frames *frames) { return !frames->streams[0].have && !frames->streams[1].have; }

bool send_message(int socket, enum connection connection, uint32_t stream, enum message kind, struct bytes body) {
    uint8_t bytes[4096]; /* the runtime reads through a buffer of this size */
    struct output out = {bytes, PIECE_HEADER + HEADER, sizeof bytes};
    put(bytes, connection);
    put(bytes + 4, (uint32_t)(HEADER + body.size));
    put(bytes + 8, (uint32_t)body.size);
    put(bytes + 12, stream);
    bytes[16] = (uint8_t)kind;
    bytes[17] = 0;
    put_raw(&out, body.at, body.size);
    for (size_t sent = 0; sent < out.size;) {
        ssize_t some = write(socket, bytes + sent, out.size - sent);
        if (some < 0 && errno != EINTR) return false;
        if (some > 0) sent += (size_t)some;
    }
    return true;
}
