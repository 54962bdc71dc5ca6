/* Source: RFC 8259. Bytes above 0x7f are part of a text whatever they are: no name that is looked for has one. */

#include "json.h"

static bool at_one_of(const struct cursor *json, const char *chars) {
    return json->at < json->end && *json->at && strchr(chars, *json->at);
}

bool take(struct cursor *json, const char *chars) {
    if (!at_one_of(json, chars)) return false;
    json->at++;
    return true;
}

void skip_space(struct cursor *json) {
    while (take(json, " \t\n\r")) {}
}

static bool skip_digits(struct cursor *json) {
    if (!take(json, "0123456789")) return false;
    while (take(json, "0123456789")) {}
    return true;
}

static bool skip_number(struct cursor *json) {
    take(json, "-");
    if (!take(json, "0") && !skip_digits(json)) return false;
    if (take(json, ".") && !skip_digits(json)) return false;
    if (!take(json, "eE")) return true;
    take(json, "+-");
    return skip_digits(json);
}

bool skip_word(struct cursor *json, const char *word) {
    size_t size = strlen(word);
    if ((size_t)(json->end - json->at) < size || memcmp(json->at, word, size)) return false;
    json->at += size;
    return true;
}

static bool take_hex(struct cursor *json, unsigned *number) {
    *number = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        if (!at_one_of(json, digits)) return false;
        *number = *number << 4 | ((strchr(digits, *json->at++) - digits) & 15);
    }
    return true;
}

/* Write a character as UTF-8: of a pair of surrogates each by itself, which takes no more room either. */
static uint8_t *put(uint8_t *to, unsigned number) {
    if (number < 0x80) {
        *to++ = (uint8_t)number;
    } else if (number < 0x800) {
        *to++ = (uint8_t)(0xc0 | number >> 6);
        *to++ = (uint8_t)(0x80 | (number & 0x3f));
    } else {
        *to++ = (uint8_t)(0xe0 | number >> 12);
        *to++ = (uint8_t)(0x80 | (number >> 6 & 0x3f));
        *to++ = (uint8_t)(0x80 | (number & 0x3f));
    }
    return to;
}

static bool take_escape(struct cursor *json, uint8_t **to) {
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    unsigned number;
    if (take(json, "u")) {
        if (!take_hex(json, &number)) return false;
        *to = put(*to, number);
        return true;
    }
    if (!at_one_of(json, escapes)) return false;
    *(*to)++ = (uint8_t)meant[strchr(escapes, *json->at++) - escapes];
    return true;
}

bool take_text(struct cursor *json, struct bytes *said) {
    if (!take(json, "\"")) return false;
    uint8_t *start = json->at, *to = start;
    while (json->at < json->end && *json->at >= ' ') {
        uint8_t byte = *json->at++;
        if (byte == '"') {
            *said = (struct bytes){start, (size_t)(to - start)};
            return true;
        }
        if (byte != '\\') {
            *to++ = byte;
        } else if (!take_escape(json, &to)) {
            return false;
        }
    }
    return false;
}

bool next_element(struct cursor *json, const char *end, bool *first, bool *whole) {
    skip_space(json);
    *whole = true;
    if (take(json, end)) {
        return false;
    }
    if (!*first && !take(json, ",")) return *whole = false;
    *first = false;
    skip_space(json);
    return true;
}

static bool skip_list(struct cursor *json, unsigned depth) {
    bool first = true, whole;
    while (next_element(json, "]", &first, &whole)) {
        if (!skip_value(json, depth)) return false;
    }
    return whole;
}

bool take_name(struct cursor *json, struct bytes *name) {
    if (!take_text(json, name)) return false;
    skip_space(json);
    if (!take(json, ":")) return false;
    skip_space(json);
    return true;
}

static bool skip_object(struct cursor *json, unsigned depth) {
    struct bytes name;
    bool first = true, whole;
    while (next_element(json, "}", &first, &whole)) {
        if (!take_name(json, &name) || !skip_value(json, depth)) return false;
    }
    return whole;
}

bool skip_value(struct cursor *json, unsigned depth) {
    struct bytes said;
    if (depth == 0) return false;
    if (take(json, "{")) return skip_object(json, depth - 1);
    if (take(json, "[")) return skip_list(json, depth - 1);
    if (at_one_of(json, "\"")) return take_text(json, &said);
    return skip_word(json, "true") || skip_word(json, "false") || skip_word(json, "null") || skip_number(json);
}
