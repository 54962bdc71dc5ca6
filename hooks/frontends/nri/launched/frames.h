/* NRI's socket: two logical connections of ttrpc messages. */
#ifndef LADING_FRAMES_H
#define LADING_FRAMES_H

#include "protobuf.h"

enum connection { TO_PLUGIN = 1, TO_RUNTIME = 2 }; /* who is called there */
enum message { REQUEST = 1, RESPONSE = 2 };

/* Take bytes as they came from the socket. False: they are no NRI, and the rest of the stream cannot be read either. */
bool receive(const uint8_t *bytes, size_t size);

/* Called with each whole message: its stream, and the body of a Request on TO_PLUGIN, of a Response on TO_RUNTIME. */
bool received(enum connection connection, uint32_t stream, struct bytes body);

/* Write a message of a few hundred bytes. False: the socket is closed. */
bool send_message(int socket, enum connection connection, uint32_t stream, enum message kind, struct bytes body);

#endif
