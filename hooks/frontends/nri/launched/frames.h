/* NRI's socket: two logical connections of ttrpc messages. */
#ifndef LADING_FRAMES_H
#define LADING_FRAMES_H

#include "protobuf.h"

enum connection { TO_PLUGIN = 1, TO_RUNTIME = 2 }; /* who is called there */
enum message { REQUEST = 1, RESPONSE = 2 };

/* Take bytes as they came from the socket. False: they are no NRI, and the rest of the stream cannot be read either. */
bool receive(const uint8_t *bytes, size_t size);

/* Of who receives: a message begins, a Request on TO_PLUGIN, a Response on TO_RUNTIME; it comes in parts; it has ended, and with
 * it the connection if false is returned. On each connection one message follows the other. */
void message_begins(enum connection connection, uint32_t size);
void message_comes(enum connection connection, const uint8_t *bytes, size_t size);
bool message_received(enum connection connection, uint32_t stream);

/* Write a message of a few hundred bytes. False: the socket is closed. */
bool send_message(int socket, enum connection connection, uint32_t stream, enum message kind, struct bytes body);

#endif
