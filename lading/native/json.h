/* Read JSON where it lies, without allocation: the reader goes over the bytes, and changes the texts in place. */
#ifndef LADING_JSON_H
#define LADING_JSON_H

#include "bytes.h"

#define DEEPEST 64 /* of values in each other; a container's configuration has about ten */

struct cursor {
    uint8_t *at, *end;
};

/* Take one character of these. Return whether it is there. */
bool take(struct cursor *json, const char *chars);

void skip_space(struct cursor *json);

bool skip_word(struct cursor *json, const char *word);

/* Take a text. What it says takes the place of how it was written, which is never shorter. */
bool take_text(struct cursor *json, struct bytes *said);

/* Take the name of an object's element, and the colon. */
bool take_name(struct cursor *json, struct bytes *name);

/* Go on to the next element of a list or an object. `first` is true before the first one. Return whether there is one; `*whole`
 * is false if there is neither one nor the end. */
bool next_element(struct cursor *json, const char *end, bool *first, bool *whole);

/* Go over a value with at most `depth` values in each other. False: it is no JSON. */
bool skip_value(struct cursor *json, unsigned depth);

#endif
