/* The guard that the runtime launches itself, so that the node is guarded from the runtime's start on (../guard.py has the rule).
 *
 * It opens no file and no connection, allocates nothing and has no configuration. It answers one call after the other until
 * the runtime closes the socket that it gave. A call that it cannot read is refused: if it ended, the runtime would go on
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

#define ANNOTATIONS 6 /* of a pod and of a container */

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

/* Read the last value of a field of text in a message; it is empty if there is none. */
static bool read_text(struct bytes message, uint32_t number, struct bytes *found) {
    struct field field;
    enum next next;
    *found = text("");
    while ((next = next_field(&message, &field)) == FOUND) {
        if (field.number != number) continue;
        if (field.kind != BYTES) return false;
        *found = field.bytes;
    }
    return next == END;
}

static bool read_number(struct bytes message, uint32_t number, uint64_t *found) {
    struct field field;
    enum next next;
    *found = 0;
    while ((next = next_field(&message, &field)) == FOUND) {
        if (field.number != number) continue;
        if (field.kind != VARINT) return false;
        *found = field.value;
    }
    return next == END;
}

static bool read_keys(struct bytes message, struct keys *found) {
    struct field field;
    enum next next;
    while ((next = next_field(&message, &field)) == FOUND) {
        struct bytes key;
        if (field.number != ANNOTATIONS) continue;
        if (field.kind != BYTES || !read_text(field.bytes, 1, &key)) return false;
        note(found, key);
    }
    return next == END;
}

/* Decide about a request that has a pod and, in the field after it, its container. */
static struct answer check(struct bytes request, uint32_t pod) {
    struct keys keys[2] = {{0}};
    struct field field;
    enum next next;
    while ((next = next_field(&request, &field)) == FOUND) {
        if (field.number != pod && field.number != pod + 1) continue;
        if (field.kind != BYTES || !read_keys(field.bytes, &keys[field.number - pod])) return MALFORMED_CALL;
    }
    if (next != END) return MALFORMED_CALL;
    struct refusal refusal = decide(keys[0], keys[1]);
    return (struct answer){refusal.status, refusal.text, {0}};
}

static struct answer state_changed(struct bytes request) {
    uint64_t event;
    if (!read_number(request, 1, &event)) return MALFORMED_CALL;
    bool asked = (uint32_t)event == CREATE_CONTAINER || (uint32_t)event == START_CONTAINER;
    return asked ? check(request, 2) : (struct answer){0};
}

static struct answer configure(void) {
    static uint8_t bytes[16];
    struct output out = {bytes, 0, sizeof bytes};
    put_number(&out, 2, BIT(CREATE_CONTAINER) | BIT(START_CONTAINER));
    return (struct answer){.payload = {bytes, out.size}};
}

static struct answer synchronize(struct bytes request) {
    static uint8_t bytes[16];
    struct output out = {bytes, 0, sizeof bytes};
    uint64_t more;
    if (!read_number(request, 3, &more)) return MALFORMED_CALL;
    if (more) put_number(&out, 2, 1);
    return (struct answer){.payload = {bytes, out.size}};
}

static struct answer answer_call(struct bytes service, struct bytes method, struct bytes payload) {
    if (equal(service, SERVICE "Plugin")) {
        if (equal(method, "CreateContainer") || equal(method, "StartContainer")) return check(payload, 1);
        if (equal(method, "StateChange")) return state_changed(payload);
        if (equal(method, "Configure")) return configure();
        if (equal(method, "Synchronize")) return synchronize(payload);
        if (equal(method, "Shutdown")) return (struct answer){0};
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

static bool called(uint32_t stream, struct bytes request) {
    struct bytes service, method, payload;
    bool whole = read_text(request, 1, &service) && read_text(request, 2, &method) && read_text(request, 3, &payload);
    return respond(stream, whole ? answer_call(service, method, payload) : MALFORMED_CALL);
}

/* The runtime's answer to the registration. */
static bool registered(struct bytes response) {
    struct bytes status, words;
    uint64_t code;
    if (!read_text(response, 1, &status) || !read_number(status, 1, &code) || !read_text(status, 2, &words)) return false;
    bool refused = (uint32_t)code != 0;
    if (refused) fprintf(stderr, "the runtime refused the plugin: %.*s\n", (int)words.size, (const char *)words.at);
    return !refused;
}

bool received(enum connection connection, uint32_t stream, struct bytes body) {
    return connection == TO_PLUGIN ? called(stream, body) : registered(body);
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
