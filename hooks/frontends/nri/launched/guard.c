/* The guard that the runtime launches itself, so that the node is guarded from the runtime's start on (../guard.py has the rule).
 *
 * It opens no file and no connection, allocates nothing and has no configuration. It answers one call after the other until
 * the runtime closes the socket that it gave. It reads a call while its bytes arrive and keeps which annotations there are, so
 * that a list of all pods may have any size. A call that it cannot read is refused: if it ended, the runtime would go on
 * without it. `texts.h` is written by the build from the Python guard: annotations, texts, codes and the version.
 *
 * Source: containerd/nri, pkg/api/api.proto and plugin.go (the environment of a launched plugin). */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frames.h"
#include "rule.h"
#include "texts.h"

#define SOCKET "NRI_PLUGIN_SOCKET"
#define SERVICE "nri.pkg.api.v1alpha1."

#define CREATE_CONTAINER 4
#define START_CONTAINER 6
#define BIT(event) (1 << ((event) - 1))

/* Numbers of fields. */
enum { SERVICE_NAME = 1, METHOD = 2, PAYLOAD = 3 };  /* of a Request */
enum { EVENT = 1, CHANGED_POD = 2 };                 /* of a StateChangeEvent; its container follows */
enum { POD = 1, MORE = 3 };                          /* of other calls; the container follows the pod */
enum { ANNOTATIONS = 6, KEY = 1 };                   /* of a pod and of a container */
enum { STATUS = 1, CODE = 1, WORDS = 2 };            /* of a Response, and of its status */

/* lading-hooks and lading-doctor look for it in the file. */
static const char version[] __attribute__((used)) = VERSION_MARK VERSION;

static int runtime = -1;

struct answer {
    int status; /* 0: success */
    const char *text;
    struct bytes payload;
};

static const struct answer MALFORMED_CALL = {INVALID_ARGUMENT, "the message is no request of this method", {0}};

/* ---- messages */

enum method { UNKNOWN, CONFIGURE, SYNCHRONIZE, SHUTDOWN, CHANGE, CHECK };

static enum method find_method(struct bytes name) {
    if (equal(name, "CreateContainer") || equal(name, "StartContainer")) return CHECK;
    if (equal(name, "StateChange")) return CHANGE;
    if (equal(name, "Configure")) return CONFIGURE;
    if (equal(name, "Synchronize")) return SYNCHRONIZE;
    if (equal(name, "Shutdown")) return SHUTDOWN;
    return UNKNOWN;
}

/* What is kept of a call. */
static struct call {
    bool plugin, named, has_payload; /* its service is the plugin's; its method, its payload have come */
    enum method method;
    struct keys keys[2]; /* of pod and container */
    uint64_t event, more;
} call;

static uint64_t code; /* of the runtime's answer to the registration */

/* Readers of both connections; path[0].number is the connection. */
static struct reader readers[2];

static enum action expect(enum kind kind, enum kind expected, enum action action) { return kind == expected ? action : REFUSE; }

static enum action request_field(struct reader *reader, uint32_t field, enum kind kind) {
    uint32_t pod = call.method == CHANGE ? CHANGED_POD : POD;
    switch (reader->depth) {
    case 0:
        if (field != SERVICE_NAME && field != METHOD && field != PAYLOAD) return SKIP;
        if (field != PAYLOAD) return call.has_payload ? REFUSE : expect(kind, BYTES, KEEP);
        if (!call.named) return REFUSE; /* a sender writes the fields in their order */
        call.has_payload = true;
        memset(call.keys, 0, sizeof call.keys);
        call.event = call.more = 0;
        return expect(kind, BYTES, call.method == UNKNOWN ? SKIP : ENTER);
    case 1:
        if (call.method == SYNCHRONIZE) return field == MORE ? expect(kind, VARINT, KEEP) : SKIP;
        if (call.method == CHANGE && field == EVENT) return expect(kind, VARINT, KEEP);
        if (call.method != CHANGE && call.method != CHECK) return SKIP;
        return field == pod || field == pod + 1 ? expect(kind, BYTES, ENTER) : SKIP;
    case 2:
        if (field != ANNOTATIONS) return SKIP;
        reader->kept = 0; /* an entry without a key has the empty one */
        return expect(kind, BYTES, ENTER);
    default: return field == KEY ? expect(kind, BYTES, KEEP) : SKIP;
    }
}

static enum action response_field(const struct reader *reader, uint32_t field, enum kind kind) {
    if (reader->depth == 0) return field == STATUS ? expect(kind, BYTES, ENTER) : SKIP;
    if (field == CODE) return expect(kind, VARINT, KEEP);
    return field == WORDS ? expect(kind, BYTES, KEEP) : SKIP;
}

enum action field_begins(struct reader *reader, uint32_t field, enum kind kind) {
    return reader->path[0].number == TO_PLUGIN ? request_field(reader, field, kind) : response_field(reader, field, kind);
}

void number_read(struct reader *reader, uint64_t value) {
    if (reader->path[0].number == TO_RUNTIME) code = value;
    else if (call.method == CHANGE) call.event = value;
    else call.more = value;
}

void text_read(struct reader *reader, struct bytes found) {
    if (reader->path[0].number == TO_RUNTIME || reader->depth > 0) return; /* it is in the reader until the next text */
    if (reader->field == SERVICE_NAME) {
        call.plugin = equal(found, SERVICE "Plugin");
    } else {
        call.named = true;
        call.method = find_method(found);
    }
}

void message_ended(struct reader *reader) {
    if (reader->path[0].number == TO_RUNTIME || reader->depth != 3) return;
    uint32_t pod = call.method == CHANGE ? CHANGED_POD : POD;
    note(&call.keys[reader->path[2].number - pod], (struct bytes){reader->text, reader->kept});
}

static struct answer check(void) {
    struct refusal refusal = decide(call.keys[0], call.keys[1]);
    return (struct answer){refusal.status, refusal.text, {0}};
}

static struct answer state_changed(void) {
    bool asked = (uint32_t)call.event == CREATE_CONTAINER || (uint32_t)call.event == START_CONTAINER;
    return asked ? check() : (struct answer){0};
}

static struct answer configure(void) {
    static uint8_t bytes[16];
    struct output out = {bytes, 0, sizeof bytes};
    put_number(&out, 2, BIT(CREATE_CONTAINER) | BIT(START_CONTAINER));
    return (struct answer){.payload = {bytes, out.size}};
}

static struct answer synchronize(void) {
    static uint8_t bytes[16];
    struct output out = {bytes, 0, sizeof bytes};
    if (call.more) put_number(&out, 2, 1);
    return (struct answer){.payload = {bytes, out.size}};
}

static struct answer answer_call(void) {
    switch (call.plugin ? call.method : UNKNOWN) {
    case CHECK: return check();
    case CHANGE: return state_changed();
    case CONFIGURE: return configure();
    case SYNCHRONIZE: return synchronize();
    case SHUTDOWN: return (struct answer){0};
    case UNKNOWN: break;
    }
    return (struct answer){UNIMPLEMENTED, "no such method", {0}};
}

/* ---- the conversation */

static bool respond(uint32_t stream, struct answer answer) {
    uint8_t bytes[2048], status_bytes[1024];
    struct output out = {bytes, 0, sizeof bytes}, status = {status_bytes, 0, sizeof status_bytes};
    if (answer.status) {
        put_number(&status, 1, (uint64_t)answer.status);
        put_bytes(&status, 2, text(answer.text));
        put_bytes(&out, 1, (struct bytes){status.at, status.size});
    } else if (answer.payload.size) {
        put_bytes(&out, 2, answer.payload);
    }
    return send_message(runtime, TO_PLUGIN, stream, RESPONSE, (struct bytes){out.at, out.size});
}

/* The runtime's answer to the registration. */
static bool registered(const struct reader *reader) {
    bool refused = (uint32_t)code != 0;
    if (refused) fprintf(stderr, "the runtime refused the plugin: %.*s\n", (int)reader->kept, (const char *)reader->text);
    return is_whole(reader) && !refused;
}

void message_begins(enum connection connection, uint32_t size) {
    if (connection == TO_PLUGIN) call = (struct call){0};
    else code = 0;
    begin_message(&readers[connection - 1], connection, size);
}

void message_comes(enum connection connection, const uint8_t *bytes, size_t size) {
    read_part(&readers[connection - 1], bytes, size);
}

bool message_received(enum connection connection, uint32_t stream) {
    const struct reader *reader = &readers[connection - 1];
    if (connection == TO_RUNTIME) return registered(reader);
    return respond(stream, is_whole(reader) ? answer_call() : MALFORMED_CALL);
}

static bool register_plugin(void) {
    uint8_t bytes[256], named[64];
    struct output out = {bytes, 0, sizeof bytes}, name = {named, 0, sizeof named};
    put_bytes(&name, 1, text(NAME));
    put_bytes(&name, 2, text(INDEX));
    put_bytes(&out, 1, text(SERVICE "Runtime"));
    put_bytes(&out, 2, text("RegisterPlugin"));
    put_bytes(&out, 3, (struct bytes){name.at, name.size});
    return send_message(runtime, TO_RUNTIME, 1, REQUEST, (struct bytes){out.at, out.size});
}

static int find_socket(void) {
    const char *given = getenv(SOCKET);
    char *end;
    if (!given || !*given) return -1;
    long found = strtol(given, &end, 10);
    return *end || found < 0 || found > 1 << 20 ? -1 : (int)found;
}

int main(int argc, char **argv) {
    static uint8_t bytes[1 << 16];
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        puts(version + strlen(VERSION_MARK));
        return 0;
    }
    runtime = find_socket();
    if (runtime < 0 || fcntl(runtime, F_SETFL, 0) < 0) {
        fputs("cannot guard: " SOCKET " is no open file; the container runtime launches this from its folder of NRI plugins\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if (!register_plugin()) return 1;
    for (;;) {
        ssize_t some = read(runtime, bytes, sizeof bytes);
        if (some == 0) return 0;
        if (some < 0 && errno == EINTR) continue;
        if (some < 0 || !receive(bytes, (size_t)some)) return 1;
    }
}
