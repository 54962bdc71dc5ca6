/* The runtime launches the guard, and gives it a socket: then the node is guarded from the runtime's start on, and the guard opens
 * no file and hides nothing. Or `lading-hooks nri-guard` becomes the guard: then it connects by itself, and again whenever the
 * runtime restarts. While the runtime calls it, it holds a lock, by which lading-hooks finds out that the node is guarded; the
 * kernel frees the lock when the process ends. By the name of the runtime handler, the program is that instead (handler.h).
 *
 * Source: containerd/nri, pkg/api/api.proto, plugin.go (the environment of a launched plugin), pkg/adaptation (RegisterPlugin,
 * Configure, Synchronize, in this order). */

#define _GNU_SOURCE /* ppoll */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "frames.h"
#include "handler.h"
#include "hiding.h"
#include "record.h"
#include "texts.h"

#define SOCKET "NRI_PLUGIN_SOCKET"
#define RETRY_MS 200      /* between two attempts, so that a restarted runtime is reached within a second */
#define LONGEST_MS 10000  /* between two attempts at most: doubled while a runtime accepts connections and does not call the guard */
#define SILENCE_MS 10000  /* until the answer to the registration; a socket that is silent for longer is not NRI's */
#define LIST_MS 60000     /* from then until the list of pods, which a runtime sends once no container is being created */
#define FOREVER (-1)
#define MAX_FD (1 << 20)

/* lading-hooks and lading-doctor look for a mark with the version in the files that they installed. */
static const char versions[] = GUARD_MARK VERSION "\0" RUNC_MARK VERSION;

enum { STATUS = 1, CODE = 1, WORDS = 2 }; /* numbers of fields of a Response, and of its status */

static int runtime = -1, lock = -1;
static bool guarding, accepted, launched; /* accepted: the runtime accepts the registration */
static uint64_t began_ns;                  /* when the first bytes of the current message were read */
static char problem[512], last_problem[sizeof problem]; /* why the runtime does not call the guard */
static uint64_t code; /* of the runtime's answer to the registration */
static sigset_t unblocked;
static volatile sig_atomic_t stopping;

/* Note why the conversation ends. Return false. */
__attribute__((format(printf, 1, 2))) static bool lose(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(problem, sizeof problem, format, values);
    va_end(values);
    return false;
}

/* ---- whether it guards */

static void begin_guarding(void) {
    if (guarding) return;
    guarding = true;
    last_problem[0] = '\0';
    if (lock >= 0) flock(lock, LOCK_SH);
    write_record(INFO, NRI_CONNECTED, "");
}

/* Log the loss; a reason that repeats is logged once. */
static void end_guarding(void) {
    if (guarding && lock >= 0) flock(lock, LOCK_UN);
    guarding = false;
    if (strcmp(problem, last_problem)) write_record(WARNING, NRI_LOST, problem);
    strcpy(last_problem, problem);
}

/* ---- the conversation */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Return whether the runtime has given up the list of pods, or is about to: the answer needs some of the time too. Then it ignores
 * the guard, and leaves the connection open. */
static bool is_late(uint64_t timeout_ns) { return timeout_ns && now_ns() - began_ns > timeout_ns / 10 * 9; }

/* Show by the name of the process whether the runtime ignores a launched guard, which has no log and opens no file. lading-doctor
 * reads the name. The guard stays, because it would not be launched again; a later call shows that it is not ignored. */
static void show_ignored(bool ignored) {
    static bool shown;
    if (ignored != shown) prctl(PR_SET_NAME, ignored ? IGNORED : INDEX "-" NAME);
    shown = ignored;
}

static bool respond(uint32_t stream, const struct reader *reader) {
    uint8_t bytes[2048], status_bytes[1024];
    struct output out = {bytes, 0, sizeof bytes}, status = {status_bytes, 0, sizeof status_bytes};
    struct answer answer = answer_call(is_whole(reader));
    if (answer.status) {
        put_number(&status, CODE, (uint64_t)answer.status);
        put_bytes(&status, WORDS, text(answer.text));
        put_bytes(&out, STATUS, (struct bytes){status.at, status.size});
    } else if (answer.payload.size) {
        put_bytes(&out, 2, answer.payload);
    }
    if (!send_message(runtime, TO_PLUGIN, stream, RESPONSE, (struct bytes){out.at, out.size})) return lose("%s", strerror(errno));
    bool late = answer.synchronized && is_late(answer.timeout_ns);
    if (launched) show_ignored(late);
    else if (late)
        return lose("the list of pods took longer than the runtime waits: set plugin_request_timeout in its configuration");
    if (answer.synchronized) begin_guarding();
    began_ns = now_ns();
    return true;
}

static enum action response_field(struct reader *reader, uint32_t field, enum kind kind) {
    if (reader->depth == 0) return field != STATUS ? SKIP : kind == BYTES ? ENTER : REFUSE;
    if (field == CODE) return kind == VARINT ? KEEP : REFUSE;
    return field != WORDS ? SKIP : kind == BYTES ? KEEP : REFUSE;
}

static void code_read(struct reader *reader, uint64_t value) {
    (void)reader;
    code = value;
}

static void words_read(struct reader *reader, struct bytes words) { (void)reader, (void)words; /* they are in the reader */ }
static void status_ended(struct reader *reader) { (void)reader; }

static const struct fields RESPONSE_FIELDS = {response_field, code_read, words_read, status_ended};

/* The runtime's answer to the registration. */
static bool registered(uint32_t stream, const struct reader *reader) {
    (void)stream;
    began_ns = now_ns();
    accepted = true;
    if ((uint32_t)code) return lose("the runtime refused the plugin: %.*s", (int)reader->kept, (const char *)reader->text);
    return is_whole(reader) || lose("cannot read the runtime's answer to the registration");
}

static const struct receiver RECEIVERS[] = {{&REQUEST_FIELDS, respond}, {&RESPONSE_FIELDS, registered}};

static bool register_plugin(void) {
    uint8_t bytes[256], named[64];
    struct output out = {bytes, 0, sizeof bytes}, name = {named, 0, sizeof named};
    put_bytes(&name, 1, text(NAME));
    put_bytes(&name, 2, text(INDEX));
    put_bytes(&out, 1, text(SERVICE "Runtime"));
    put_bytes(&out, 2, text("RegisterPlugin"));
    put_bytes(&out, 3, (struct bytes){name.at, name.size});
    return send_message(runtime, TO_RUNTIME, 1, REQUEST, (struct bytes){out.at, out.size}) || lose("%s", strerror(errno));
}

/* Wait until the socket has bytes, or is closed. Return false after this time. End at a signal to stop. */
static bool wait_for(int fd, int ms) {
    struct pollfd in = {fd, POLLIN, 0};
    struct timespec limit = {ms / 1000, ms % 1000 * 1000000L};
    int ready;
    do ready = ppoll(&in, 1, ms == FOREVER ? NULL : &limit, &unblocked);
    while (ready < 0 && !stopping);
    if (!stopping) return ready != 0;
    write_record(INFO, DAEMON_STOPPED, "");
    exit(0);
}

/* Be called until the connection is lost. Return whether the runtime closed it. */
static bool converse(void) {
    static uint8_t bytes[1 << 16];
    struct frames frames = {0};
    code = 0;
    accepted = false;
    answer_call(false); /* what the last connection left */
    if (!register_plugin()) return false;
    for (;;) {
        if (!wait_for(runtime, guarding || launched ? FOREVER : accepted ? LIST_MS : SILENCE_MS)) return lose("nothing speaks NRI there");
        ssize_t some = read(runtime, bytes, sizeof bytes);
        if (some < 0 && errno == EINTR) continue;
        if (some < 0) return lose("%s", strerror(errno));
        if (some == 0) return !lose("the runtime closed the connection");
        problem[0] = '\0';
        if (is_idle(&frames)) began_ns = now_ns();
        if (receive(&frames, RECEIVERS, bytes, (size_t)some)) continue;
        return problem[0] ? false : lose("cannot read what came: it is not NRI");
    }
}

/* ---- ways to be started */

static void stop(int number) { stopping = number; }

static void begin(void) {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGINT);
    sigprocmask(SIG_BLOCK, &blocked, &unblocked);
    sigdelset(&unblocked, SIGTERM);
    sigdelset(&unblocked, SIGINT);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = stop}, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static int guard_launched(void) {
    const char *given = getenv(SOCKET);
    char *end;
    if (!given) given = "";
    long found = strtol(given, &end, 10);
    runtime = found < 0 || found > MAX_FD ? -1 : (int)found;
    if (!*given || *end || fcntl(runtime, F_SETFL, 0) < 0) {
        fputs("cannot guard: " SOCKET " is no open file; the container runtime launches this from its folder of NRI plugins\n", stderr);
        return 2;
    }
    launched = true; /* a runtime that starts may be slow, and would not launch it again */
    bool closed = converse();
    end_guarding();
    return closed ? 0 : 1;
}

static bool connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    runtime = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (runtime < 0) return lose("%s", strerror(errno));
    if (connect(runtime, (struct sockaddr *)&address, sizeof address)) return lose("%s: %s", path, strerror(errno));
    return fcntl(runtime, F_SETFL, 0) == 0 || lose("%s", strerror(errno));
}

_Noreturn static void guard_connected(const char *path) {
    int wait_ms = RETRY_MS;
    write_record(INFO, DAEMON_STARTED, "");
    for (;;) {
        bool connected = connect_to(path);
        if (connected) converse();
        if (runtime >= 0) close(runtime);
        wait_ms = !connected || guarding ? RETRY_MS : 2 * wait_ms < LONGEST_MS ? 2 * wait_ms : LONGEST_MS;
        end_guarding();
        wait_for(-1, wait_ms);
    }
}

static int fail(const char *what, const char *why) {
    fprintf(stderr, "error: cannot guard: %s: %s\n", what, why);
    return 2;
}

static int guard(int argc, char **argv) {
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'}, {"lock", required_argument, NULL, 'l'},
        {"hide", required_argument, NULL, 'h'},   {"exempt", required_argument, NULL, 'e'},
        {"log-level", required_argument, NULL, 'v'}, {0},
    };
    const char *socket = NULL;
    enum priority least = INFO;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) >= 0;) {
        if (option == 's') socket = optarg;
        else if (option == 'e') exempt(optarg);
        else if (option == 'v') least = !strcmp(optarg, "error") ? ERROR : !strcmp(optarg, "warning") ? WARNING : INFO;
        else if (option == 'h' && !hide(optarg)) return fail(optarg, "it is no NAME=VALUE, is too long, or one too many");
        else if (option == 'l') lock = open(optarg, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        else if (option == '?') return 2;
        if (option == 'l' && lock < 0) return fail(optarg, strerror(errno));
    }
    if (socket && strlen(socket) >= sizeof((struct sockaddr_un *)0)->sun_path) return fail(socket, strerror(ENAMETOOLONG));
    open_log(least);
    begin();
    if (!socket) return guard_launched();
    guard_connected(socket);
}

int main(int argc, char **argv) {
    if (argc < 1) return 1;
    const char *slash = strrchr(argv[0], '/');
    if (!strcmp(slash ? slash + 1 : argv[0], RUNC)) return make_container(argv);
    if (argc == 2 && !strcmp(argv[1], "--version")) return puts(versions + strlen(GUARD_MARK)) < 0;
    return guard(argc, argv);
}
