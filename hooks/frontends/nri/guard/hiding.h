/* Which environment variables show cards to a container, and what hides them. */
#ifndef LADING_HIDING_H
#define LADING_HIDING_H

#include "protobuf.h"

#define MAX_HIDDEN 8 /* variables; each of fewer than MAX_VARIABLE bytes, so that an answer with all of them is small */
#define MAX_VARIABLE 128

/* Hide cards by NAME=VALUE, which has to outlive the program. False: it has another form, is too long, or one too many. */
bool hide(const char *variable);
/* Hide nothing from pods of these namespaces, which are separated by commas and have to outlive the program. */
void exempt(const char *namespaces);

bool is_exempt(struct bytes namespace);
/* Return the bit of the variable that an entry of an environment sets to another value; 0 if it sets none. */
unsigned find_shown(struct bytes entry);
/* Write a ContainerAdjustment that hides these variables. */
void put_hidden(struct output *out, unsigned shown);

#endif
