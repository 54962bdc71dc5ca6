/* Source: containerd/nri, pkg/api/api.proto; containerd/ttrpc, request.proto. */

#include "calls.h"

#include "hiding.h"
#include "rule.h"
#include "texts.h"

#define CREATE_CONTAINER 4
#define START_CONTAINER 6
#define BIT(event) (1 << ((event) - 1))

/* Numbers of fields. */
enum { SERVICE_NAME = 1, METHOD = 2, PAYLOAD = 3, TIMEOUT = 4 };   /* of a Request */
enum { EVENT = 1, CHANGED_POD = 2 };                               /* of a StateChangeEvent; its container follows */
enum { POD = 1, MORE = 3 };                                        /* of other calls; the container follows the pod */
enum { NAMESPACE = 4, ENVIRONMENT = 8, ANNOTATIONS = 6, KEY = 1 }; /* of a pod; of a container; of both */
enum { EVENTS = 2, STILL_MORE = 2, ADJUST = 1 };                   /* of answers */

enum method { UNKNOWN, CONFIGURE, SYNCHRONIZE, SHUTDOWN, CHANGE, CREATE, START };

static const char *const names[] = {
    [CONFIGURE] = "Configure", [SYNCHRONIZE] = "Synchronize",  [SHUTDOWN] = "Shutdown",
    [CHANGE] = "StateChange",  [CREATE] = "CreateContainer", [START] = "StartContainer",
};

/* What is kept of a call. */
static struct call {
    bool plugin, named, has_payload; /* its service is the plugin's; its method, its payload have come */
    enum method method;
    unsigned keys[2]; /* of pod and container */
    bool exempt;
    unsigned shown;
    uint64_t event, more, timeout_ns;
} call;

static enum method find_method(struct bytes name) {
    for (enum method method = CONFIGURE; method <= START; method++) {
        if (equal(name, names[method])) return method;
    }
    return UNKNOWN;
}

/* ---- reading */

static enum action expect(enum kind kind, enum kind expected, enum action action) { return kind == expected ? action : REFUSE; }

static uint32_t pod_field(void) { return call.method == CHANGE ? CHANGED_POD : POD; }

static bool is_of_pod(const struct reader *reader) { return reader->path[2].number == pod_field(); }

static enum action part_of_request(uint32_t field, enum kind kind) {
    if (field == TIMEOUT) return expect(kind, VARINT, KEEP);
    if (field != SERVICE_NAME && field != METHOD && field != PAYLOAD) return SKIP;
    if (field != PAYLOAD) return call.has_payload ? REFUSE : expect(kind, BYTES, KEEP);
    if (!call.named) return REFUSE; /* a sender writes the fields in their order */
    call.has_payload = true;
    memset(call.keys, 0, sizeof call.keys);
    call.exempt = false;
    call.shown = 0;
    call.event = call.more = 0;
    return expect(kind, BYTES, call.method == UNKNOWN ? SKIP : ENTER);
}

static enum action part_of_payload(uint32_t field, enum kind kind) {
    switch (call.method) {
    case SYNCHRONIZE: return field == MORE ? expect(kind, VARINT, KEEP) : SKIP;
    case CHANGE:
        if (field == EVENT) return expect(kind, VARINT, KEEP);
        break;
    case CREATE:
    case START: break;
    default: return SKIP;
    }
    return field == pod_field() || field == pod_field() + 1 ? expect(kind, BYTES, ENTER) : SKIP;
}

static enum action field_begins(struct reader *reader, uint32_t field, enum kind kind) {
    switch (reader->depth) {
    case 0: return part_of_request(field, kind);
    case 1: return part_of_payload(field, kind);
    case 2:
        if (field == (is_of_pod(reader) ? NAMESPACE : ENVIRONMENT)) return expect(kind, BYTES, KEEP);
        if (field != ANNOTATIONS) return SKIP;
        reader->kept = 0; /* an entry without a key has the empty one */
        return expect(kind, BYTES, ENTER);
    default: return field == KEY ? expect(kind, BYTES, KEEP) : SKIP;
    }
}

static void number_read(struct reader *reader, uint64_t value) {
    if (reader->depth == 0) call.timeout_ns = value;
    else if (call.method == CHANGE) call.event = value;
    else call.more = value;
}

static void text_read(struct reader *reader, struct bytes found) {
    if (reader->depth == 0 && reader->field == SERVICE_NAME) {
        call.plugin = equal(found, SERVICE "Plugin");
    } else if (reader->depth == 0) {
        call.named = true;
        call.method = find_method(found);
    } else if (reader->depth == 2 && is_of_pod(reader)) {
        call.exempt = is_exempt(found);
    } else if (reader->depth == 2) {
        call.shown |= find_shown(found);
    } /* else a key, which is in the reader until its annotation ends: of two, the last counts */
}

static void message_ended(struct reader *reader) {
    struct bytes key = {reader->text, reader->kept};
    if (reader->depth == 3) call.keys[is_of_pod(reader) ? 0 : 1] |= find_keys(key);
}

const struct fields REQUEST_FIELDS = {field_begins, number_read, text_read, message_ended};

/* ---- answers */

static struct answer check(void) {
    struct refusal refusal = decide(call.keys[0], call.keys[1]);
    return (struct answer){.status = refusal.status, .text = refusal.text};
}

static struct answer create(void) {
    static uint8_t bytes[MAX_HIDDEN * (MAX_VARIABLE + 16) + 16];
    uint8_t adjusted[sizeof bytes - 16];
    struct output out = {bytes, 0, sizeof bytes}, adjust = {adjusted, 0, sizeof adjusted};
    struct answer answer = check();
    if (answer.status || call.exempt || call.keys[1] & GRANTED || !call.shown) return answer;
    put_hidden(&adjust, call.shown);
    put_bytes(&out, ADJUST, (struct bytes){adjust.at, adjust.size});
    answer.payload = (struct bytes){out.at, out.size};
    return answer;
}

static struct answer state_changed(void) {
    switch ((uint32_t)call.event) {
    case CREATE_CONTAINER: return create();
    case START_CONTAINER: return check();
    default: return (struct answer){0};
    }
}

static struct answer number(uint32_t field, uint64_t value) {
    static uint8_t bytes[16];
    struct output out = {bytes, 0, sizeof bytes};
    put_number(&out, field, value);
    return (struct answer){.payload = {bytes, out.size}};
}

static struct answer find_answer(void) {
    switch (call.plugin ? call.method : UNKNOWN) {
    case CREATE: return create();
    case START: return check();
    case CHANGE: return state_changed();
    case CONFIGURE: return number(EVENTS, BIT(CREATE_CONTAINER) | BIT(START_CONTAINER));
    case SYNCHRONIZE: return call.more ? number(STILL_MORE, 1) : (struct answer){.synchronized = true};
    case SHUTDOWN: return (struct answer){0};
    case UNKNOWN: break;
    }
    return (struct answer){.status = UNIMPLEMENTED, .text = "no such method"};
}

struct answer answer_call(bool whole) {
    static const struct answer MALFORMED = {.status = INVALID_ARGUMENT, .text = "the message is no request of this method"};
    struct answer answer = whole ? find_answer() : MALFORMED;
    answer.timeout_ns = call.timeout_ns;
    call = (struct call){0};
    return answer;
}
