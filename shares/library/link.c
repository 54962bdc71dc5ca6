/* The connection to the share server, and what is asked there.
 *
 * A thread reads what the server says, and dials again when the server is gone. While it is gone, the program goes on within its
 * memory. Nothing here depends on what the turns and the memory are used for. */
#define _GNU_SOURCE
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  PATIENCE_MS = 30000,   /* of the first connection: the server may be starting */
  REDIAL_MS = 200,
  FULL_MS = 1000,        /* a process that asks NVML takes a place for a moment */
  AWAY_MS = 10000,       /* time since the loss of the server for which requests for memory wait until it is back */
  LOOK_MS = 50,          /* for the beat */
  RESERVE_MS = 100,      /* time after which freed memory that was not used again is given back */
  NEAR_LIMIT = 16,       /* with less than this part of the share left, what is freed is given back at once */
};
struct question {
  uint32_t seq;
  int answered, allowed;
  struct question *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, dialling = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static int started, joined, takes_use, fd = -1, device_count;
static struct connection dialled = {.fd = -1}; /* that is being made */
static struct page *page;
static _Atomic int64_t clock_ahead; /* the server's clock less ours: time namespaces differ */
static uint32_t last_seq;
static struct question *questions;
static struct device devices[MAX_DEVICES];
static int64_t lost_at;        /* when the connection was lost last */
static int64_t reserve_looked; /* when it was last looked whether reserves are used */
static struct frame received;
static size_t received_bytes;

static int64_t server_ns(void) { return now_ns() + atomic_load_explicit(&clock_ahead, memory_order_relaxed); }

void link_lock(void) { pthread_mutex_lock(&lock); }
void link_unlock(void) { pthread_mutex_unlock(&lock); }
void link_notify(void) { pthread_cond_broadcast(&changed); }
int link_joined(void) { return joined; }
int link_devices(void) { return device_count; }
struct device *link_device(int index) { return &devices[index]; }

__attribute__((visibility("default"))) struct page *lading_page(int64_t *ahead) {
  pthread_mutex_lock(&lock);
  struct page *shown = joined ? page : NULL;
  *ahead = atomic_load(&clock_ahead);
  pthread_mutex_unlock(&lock);
  return shown;
}

void link_wait(int64_t most_ns) {
  int64_t until = now_ns() + most_ns;
  struct timespec t = {until / 1000000000, until % 1000000000};
  pthread_cond_timedwait(&changed, &lock, &t);
}

/* Return this process's part of what the container has not used. What the others use of theirs cannot be known while the server is
 * away; and when it is back, it counts anew, in this page. */
static int64_t part_of_left(struct device *device) {
  struct page_device *shown = atomic_load(&device->page);
  int64_t used = atomic_load(&shown->used_bytes), own = atomic_load(&device->held_bytes);
  int64_t left = shown->limit_bytes - (used > own ? used : own); /* a server that began anew may not have counted ours yet */
  int32_t processes = atomic_load(&shown->processes);
  return left <= 0 ? 0 : left / (processes > 1 ? processes : 1);
}

/* With `lock` held. */
static void lose(void) {
  if (fd >= 0) close(fd);
  fd = -1;
  received_bytes = 0;
  for (int i = 0; i < device_count; i++) {
    int turn = atomic_load(&devices[i].turn);
    if (turn == WANTING || turn == HOLDING) atomic_store(&devices[i].turn, IDLE);
    devices[i].fixed_began = 0;
    if (joined) devices[i].left_bytes = part_of_left(&devices[i]) + devices[i].reserve_bytes; /* the server counts the reserve as used */
    devices[i].reserve_bytes = 0;
  }
  if (joined) lost_at = now_ns();
  joined = 0;
  for (struct question *one = questions; one; one = one->next) one->answered = -1;
  pthread_cond_broadcast(&changed);
}

/* Send a frame; with `lock` held. Does not wait: a server that does not read is lost. */
static int send_frame(struct frame frame) {
  frame.version = 1;
  if (fd >= 0 && send(fd, &frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof frame) return 1;
  lose();
  return 0;
}

/* Tell the server how many contexts there are; with `lock` held. */
static int tell_contexts(const struct device *device) {
  return !takes_use || send_frame((struct frame){.kind = CONTEXT, .device = (uint16_t)device->index, .a = device->contexts, .b = 1});
}

static void use_page(struct page *fresh) {
  struct page *old = page;
  page = fresh;
  device_count = fresh->devices;
  for (int i = 0; i < device_count; i++) {
    devices[i].index = i;
    atomic_store(&devices[i].page, &fresh->device[i]);
    atomic_store(&devices[i].neighbours, &fresh->neighbours[i]);
    atomic_store(&devices[i].takes_turns, !atomic_load(&fresh->turnless[i]));
  }
  (void)old; /* another thread may be looking at it: 4 KiB for each restart of the server stay mapped */
}

/* Connect once. Returns 1, 0, or the code of a refusal as a negative number. Called without `lock`, by one thread at a time. */
static int dial(void) {
  if (!share_connect(1, &dialled)) return -dialled.refusal;
  pthread_mutex_lock(&lock);
  fd = dialled.fd;
  dialled.fd = -1;
  atomic_store(&clock_ahead, dialled.clock_ahead);
  takes_use = dialled.takes_use;
  use_page(dialled.page);
  joined = 1;
  for (int i = 0; i < device_count && joined; i++) {
    int64_t held = atomic_load(&devices[i].held_bytes); /* also nothing: the server waits for it */
    send_frame((struct frame){.kind = ADD, .device = (uint16_t)i, .seq = ++last_seq, .a = held, .b = 1});
  }
  for (int i = 0; i < device_count && joined; i++) {
    if (devices[i].contexts) tell_contexts(&devices[i]);
  }
  int result = joined;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return result;
}

static void handle(const struct frame *frame) {
  struct device *device = &devices[frame->device];
  if (frame->kind == TOKEN && frame->device < device_count) {
    if (atomic_load(&device->turn) == WANTING) atomic_store(&device->turn, HOLDING);
  } else if (frame->kind == VERDICT) {
    for (struct question *one = questions; one; one = one->next) {
      if (one->seq == frame->seq) one->answered = 1, one->allowed = frame->a != 0;
    }
  } else if (frame->kind == REFUSED) {
    lose();
  }
  pthread_cond_broadcast(&changed);
}

static void read_frames(void) {
  while (fd >= 0) {
    ssize_t got = recv(fd, (char *)&received + received_bytes, sizeof received - received_bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      lose();
      return;
    }
    received_bytes += (size_t)got;
    if (received_bytes == sizeof received) {
      received_bytes = 0;
      handle(&received);
    }
  }
}

/* The reserve. The shares of containers do not overlap, so what the only process of a container frees is nobody else's: it is kept
 * for the next allocations, which then need no question. All with `lock` held. */

static int may_keep(struct device *device) {
  struct page_device *shown = atomic_load(&device->page);
  int64_t left = shown->limit_bytes - atomic_load(&shown->used_bytes);
  return joined && atomic_load(&shown->processes) <= 1 && left >= shown->limit_bytes / NEAR_LIMIT;
}

/* Take so many bytes of the reserve, or all; return how many. */
static int64_t take_reserve(struct device *device, int64_t bytes) {
  int64_t taken = bytes < device->reserve_bytes ? bytes : device->reserve_bytes;
  device->reserve_bytes -= taken;
  if (device->reserve_bytes < device->least_reserve) device->least_reserve = device->reserve_bytes;
  return taken;
}

static void give_back(struct device *device, int64_t bytes) {
  if (!bytes) return;
  if (!joined || !send_frame((struct frame){.kind = SUB, .device = (uint16_t)device->index, .a = bytes})) device->left_bytes += bytes;
}

/* Give back what was not used for a while; all, if another process may need it. */
static void look_at_reserves(void) {
  int is_time = now_ns() - reserve_looked > RESERVE_MS * MS;
  for (int i = 0; i < device_count; i++) {
    struct device *device = &devices[i];
    if (!device->reserve_bytes || (may_keep(device) && !is_time)) continue;
    give_back(device, take_reserve(device, may_keep(device) ? device->least_reserve : device->reserve_bytes));
    device->least_reserve = device->reserve_bytes;
  }
  if (is_time) reserve_looked = now_ns();
}

static void *keep_connection(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&lock);
    int socket = fd;
    pthread_mutex_unlock(&lock);
    if (socket < 0) {
      usleep(REDIAL_MS * 1000);
      dial();
      continue;
    }
    struct pollfd one = {socket, POLLIN, 0};
    poll(&one, 1, LOOK_MS);
    pthread_mutex_lock(&lock);
    read_frames();
    if (fd >= 0 && server_ns() - atomic_load(&page->beat) > BEAT_LOST_MS * MS) lose();
    look_at_reserves();
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

static void init_locks(void) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&changed, &monotonic);
  pthread_mutex_init(&lock, NULL);
  pthread_mutex_init(&dialling, NULL);
}

/* A child of fork has no turn, no memory of the card and no thread. Those who waited on a condition or held a lock are not there. */
static void after_fork(void) {
  if (fd >= 0) close(fd);
  if (dialled.fd >= 0 && dialled.fd != fd) close(dialled.fd);
  fd = dialled.fd = -1;
  started = joined = 0;
  questions = NULL;
  received_bytes = 0;
  init_locks();
  for (int i = 0; i < device_count; i++) {
    atomic_store(&devices[i].turn, IDLE);
    atomic_store(&devices[i].held_bytes, 0);
    devices[i].contexts = 0;
    devices[i].reserve_bytes = 0;
  }
}

__attribute__((constructor)) static void prepare(void) {
  init_locks();
  pthread_atfork(NULL, NULL, after_fork);
}

int start_thread(void *(*run)(void *)) {
  sigset_t all, before; /* signals are the program's */
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int created = !pthread_create(&thread, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (created) pthread_detach(thread);
  else fprintf(stderr, "lading: this container's share of a card cannot be used: no thread can be started\n");
  return created;
}

/* Dial until the server answers; return whether it accepts this process. */
static int dial_patiently(void) {
  int64_t began = now_ns();
  int result;
  while ((result = dial()) <= 0 && now_ns() - began < (!result ? PATIENCE_MS : result == -TOO_MANY ? FULL_MS : 0) * MS) {
    usleep(REDIAL_MS * 1000);
  }
  if (result > 0) return 1;
  fprintf(stderr, "lading: this container's share of a card cannot be used: %s (%s)\n",
          result == -OTHER_POD  ? "the share server refused this process: it is not in a cgroup of the grant's pod"
          : result == -TOO_MANY ? "too many processes of the container use the card"
          : result              ? "the share server has no grant for this container"
                                : "no share server answers; is lading-shares running on the node?",
          SOCKET_PATH);
  return 0;
}

int link_up(void) {
  pthread_mutex_lock(&dialling);
  if (!started) started = dial_patiently() && start_thread(keep_connection);
  int up = started;
  pthread_mutex_unlock(&dialling);
  return up;
}

/* Memory */

/* Ask the server; with `lock` held. Return whether it allows the amount, or -1 if it was lost before it answered. */
static int ask_server(struct device *device, int kind, int64_t amount) {
  struct question one = {.seq = ++last_seq, .next = questions};
  questions = &one;
  if (send_frame((struct frame){.kind = (uint8_t)kind, .device = (uint16_t)device->index, .seq = one.seq, .a = amount})) {
    while (!one.answered) link_wait(100 * MS);
  }
  struct question **link = &questions;
  while (*link != &one) link = &(*link)->next;
  *link = one.next;
  return one.answered > 0 ? one.allowed : -1;
}

/* Ask the server; while it is away, take the bytes of what is left to this process. If they are not left and `waits`, wait for the
 * server: it is soon back if it is started anew, or did not run for a moment, and a program that is refused memory may end. With
 * `lock` held. */
static int ask(struct device *device, int kind, int64_t amount, int64_t bytes, int waits) {
  for (;;) {
    int allowed = joined ? ask_server(device, kind, amount) : -1;
    if (allowed >= 0) return allowed;
    if (informs(device) || bytes <= device->left_bytes) break;
    if (!waits || now_ns() - lost_at > AWAY_MS * MS) return 0;
    link_wait(100 * MS);
  }
  device->left_bytes -= bytes;
  return 1;
}

static int add(struct device *device, int64_t bytes, int waits) {
  pthread_mutex_lock(&lock);
  int64_t own = take_reserve(device, bytes);
  int allowed = own == bytes || ask(device, ADD, bytes - own, bytes - own, waits);
  if (allowed) atomic_fetch_add(&device->held_bytes, bytes);
  else give_back(device, own);
  pthread_mutex_unlock(&lock);
  return allowed;
}

int memory_add(struct device *device, int64_t bytes) { return add(device, bytes, 1); }
int memory_add_now(struct device *device, int64_t bytes) { return add(device, bytes, 0); }

void memory_held(struct device *device, int64_t bytes) {
  struct frame frame = {.kind = ADD, .device = (uint16_t)device->index, .b = 1};
  pthread_mutex_lock(&lock);
  frame.a = bytes - take_reserve(device, bytes);
  frame.seq = ++last_seq;
  if (frame.a && (!joined || !send_frame(frame))) device->left_bytes -= frame.a;
  atomic_fetch_add(&device->held_bytes, bytes);
  pthread_mutex_unlock(&lock);
}

void memory_sub(struct device *device, int64_t bytes) {
  if (!bytes) return;
  pthread_mutex_lock(&lock);
  atomic_fetch_sub(&device->held_bytes, bytes);
  if (may_keep(device)) device->reserve_bytes += bytes;
  else give_back(device, bytes);
  pthread_mutex_unlock(&lock);
}

int64_t memory_left(struct device *device) {
  pthread_mutex_lock(&lock);
  struct page_device *shown = atomic_load(&device->page);
  int64_t left = shown->limit_bytes - atomic_load(&shown->used_bytes) + device->reserve_bytes;
  pthread_mutex_unlock(&lock);
  return left > 0 ? left : 0;
}

static int64_t context_bytes(struct device *device) { return (int64_t)atomic_load(&page->context_mib[device->index]) << 20; }

int context_begin(struct device *device) {
  pthread_mutex_lock(&lock);
  give_back(device, take_reserve(device, device->reserve_bytes));
  int counts = !joined || takes_use; /* an earlier server does not */
  int allowed = !counts || ask(device, CONTEXT, device->contexts + 1, context_bytes(device), 1);
  if (allowed) device->contexts++;
  pthread_mutex_unlock(&lock);
  if (!allowed) {
    struct page_device *shown = atomic_load(&device->page);
    fprintf(stderr, "lading: no context can be made: it takes %d MiB, and %lld of this container's %lld MiB of the card are in use\n",
            (int)(context_bytes(device) >> 20), (long long)atomic_load(&shown->used_bytes) >> 20, (long long)shown->limit_bytes >> 20);
  }
  return allowed;
}

void context_end(struct device *device) {
  pthread_mutex_lock(&lock);
  device->contexts--;
  if (!joined || !tell_contexts(device)) device->left_bytes += context_bytes(device);
  pthread_mutex_unlock(&lock);
}

/* Turns */

int turn_takes_use(void) { return takes_use; }

int64_t turn_left(struct device *device) {
  int64_t until = atomic_load_explicit(&atomic_load(&device->page)->until, memory_order_relaxed);
  if (until == NO_END) return NO_END;
  int64_t left = until - server_ns();
  return left > 0 ? left : 0;
}

int64_t turn_over(struct device *device) {
  int64_t until = atomic_load(&atomic_load(&device->page)->until);
  return !until || until == NO_END ? 0 : server_ns() - until; /* a server that is new knows of no turn */
}

void turn_want(struct device *device, int64_t length, int64_t used) {
  atomic_store(&device->turn, WANTING);
  send_frame((struct frame){.kind = WANT, .device = (uint16_t)device->index, .a = length, .c = used});
}

void turn_release(struct device *device, int64_t used) {
  atomic_store(&device->turn, IDLE);
  send_frame((struct frame){.kind = RELEASE, .device = (uint16_t)device->index, .c = used});
}

void turn_use(struct device *device, int64_t used, int pause) {
  if (joined && takes_use) send_frame((struct frame){.kind = USE, .device = (uint16_t)device->index, .a = pause, .c = used});
}
