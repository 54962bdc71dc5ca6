/* A container's connection to the share server: the frames and the page (docs/isolation.md; shares/wire.py, shares/page.py). */
#ifndef LADING_SHARE_H
#define LADING_SHARE_H
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define MS 1000000LL

enum { MAX_DEVICES = 16, BEAT_LOST_MS = 1000 };
enum { HELLO = 1, WANT, RELEASE, ADD, SUB, USE, CONTEXT, WELCOME = 128, TOKEN, VERDICT, REFUSED };
enum { OTHER_POD = 1, TOO_MANY, NO_GRANT };

struct frame {
  uint8_t version, kind;
  uint16_t device;
  uint32_t seq;
  int64_t a, b, c;
};

struct page_device {
  unsigned char uuid[16];
  _Atomic int64_t until;
  _Atomic int32_t waiters;
  int32_t request_ppm, limit_ppm;
  _Atomic int32_t processes;
  int64_t limit_bytes;
  _Atomic int64_t used_bytes;
  _Atomic int32_t informs; /* 1: the driver keeps to the limit, and nothing is refused here */
  _Atomic uint32_t pause;   /* number of the pause in which the container launches nothing; 0: there is none */
};
struct page {
  uint32_t magic;
  uint16_t version, devices;
  _Atomic int64_t beat;
  _Atomic unsigned char neighbours[MAX_DEVICES]; /* 1: other containers have used the device within the last second */
  _Atomic uint16_t context_mib[MAX_DEVICES]; /* memory that a context takes, as far as the driver has told the server */
  struct page_device device[MAX_DEVICES];
  _Atomic unsigned char turnless[MAX_DEVICES]; /* 1: launches need no turn, because an MPS server runs all kernels of the card */
};

struct connection {
  int fd, refusal;     /* why there is none: REFUSED's code, or 0: no answer */
  int takes_use;       /* the server takes USE and CONTEXT: it is not of an earlier version */
  struct page *page;   /* the caller's to unmap */
  int64_t clock_ahead; /* the server's clock less ours: time namespaces differ */
};

/* Connect once, within 3 s; return whether that is done. `launches`: this process is to launch work, not only to ask. */
int share_connect(int launches, struct connection *out);
/* Close the connection; its page stays mapped. */
void share_disconnect(struct connection *);

static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
#endif
