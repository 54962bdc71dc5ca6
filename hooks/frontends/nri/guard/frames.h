/* NRI's socket: two logical connections of ttrpc messages. */
#ifndef LADING_FRAMES_H
#define LADING_FRAMES_H

#include "protobuf.h"

enum connection { TO_PLUGIN = 1, TO_RUNTIME = 2 }; /* who is called there */
enum message { REQUEST = 1, RESPONSE = 2 };

/* Who takes the messages of a connection: Requests on TO_PLUGIN, Responses on TO_RUNTIME. */
struct receiver {
    const struct fields *fields; /* read the message while it arrives */
    bool (*received)(uint32_t stream, const struct reader *reader); /* false: read nothing more */
};

/* What has arrived of both connections; all zero at first. On each, one message follows the other. */
struct frames {
    struct piece {
        size_t have; /* bytes of the header */
        uint8_t header[8];
        size_t left; /* bytes of the piece */
    } piece;
    struct stream {
        size_t have; /* bytes of the header */
        uint8_t header[10];
        uint32_t left; /* bytes of the message */
        struct reader reader;
    } streams[2];
};

/* Take bytes as they came from the socket. `receivers`: of TO_PLUGIN and of TO_RUNTIME. False: a receiver wants no more, or the
 * bytes are not NRI, and the others cannot be read either. */
bool receive(struct frames *frames, const struct receiver receivers[2], const uint8_t *bytes, size_t size);

/* Return whether no part of a message has arrived without its end. */
bool is_idle(const struct frames *frames);

/* Write a message of a few hundred bytes. False: the socket is closed. */
bool send_message(int socket, enum connection connection, uint32_t stream, enum message kind, struct bytes body);

#endif
