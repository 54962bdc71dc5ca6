/* The connection to the share server: turns to launch, verdicts about memory, and what happens while the server is away. */
#ifndef LADING_LINK_H
#define LADING_LINK_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "share.h"

#define NO_END INT64_MAX

enum turn { IDLE, WANTING, HOLDING };

/* A card of the grant, for this process. */
struct device {
  int index;                        /* in the grant */
  struct page_device *_Atomic page; /* stays mapped when the server is away */
  _Atomic unsigned char *_Atomic neighbours;
  _Atomic int takes_turns;
  _Atomic int turn;
  _Atomic int64_t held_bytes; /* memory of this process, without its contexts */
  int contexts;               /* number of contexts of this process */
  int64_t fixed_began;        /* while the server is away: the beginning of the present period; 0 if it has not begun */
  int64_t left_bytes;         /* that this process may still allocate until the server is back */
  int64_t reserve_bytes;      /* freed memory, which counts at the server until it is used again or given back */
  int64_t least_reserve;      /* since it was last looked whether the reserve is used */
};

/* Return whether the driver keeps to the limit of memory: programs are shown the limit here, and nothing is refused. */
static inline int informs(struct device *device) { return atomic_load(&atomic_load(&device->page)->informs); }

/* Connect if that was not done in this process; return whether it is done. A line on stderr says why not. */
int link_up(void);
/* Start a thread that gets no signals; return whether it runs. */
int start_thread(void *(*)(void *));
/* The grant's devices; none before the first connection. */
int link_devices(void);
struct device *link_device(int index);

/* For libnvidia-ml.so.1 (nvml.c): return the page, and the server's clock less ours; NULL if the server is not there. */
struct page *lading_page(int64_t *clock_ahead);

/* The lock of the connection and of the turns; a turn changes only with it held. */
void link_lock(void);
void link_unlock(void);
/* With the lock held: return whether the server is there; wait for a change of it or of a turn; end such waits. */
int link_joined(void);
void link_wait(int64_t most_ns);
void link_notify(void);

/* Ask whether so many more bytes may be allocated; they count from then on. */
int memory_add(struct device *, int64_t bytes);
/* The same, without waiting for a server that is away: for callers that hold `table_lock`, which other threads need to free memory. */
int memory_add_now(struct device *, int64_t bytes);
void memory_sub(struct device *, int64_t bytes);
/* Count bytes that are allocated already. */
void memory_held(struct device *, int64_t bytes);
/* Return how many bytes of the share nothing uses. */
int64_t memory_left(struct device *);
/* Ask whether one more context may be made, whose memory is known to the server; it counts from then on. */
int context_begin(struct device *);
void context_end(struct device *);

/* Ask for a turn for work of this length, or give it back; with the lock held. `used`: time of the device outside turns. */
void turn_want(struct device *, int64_t length, int64_t used);
void turn_release(struct device *, int64_t used);
/* Report time of the device outside turns, and pause the holder of the turn, or end that; with the lock held. */
void turn_use(struct device *, int64_t used, int pause);
/* Return whether the server lets processes work outside turns. */
int turn_takes_use(void);
/* Return for how long the turn lasts, or 0. */
int64_t turn_left(struct device *);
/* Return for how long the turn has been over. */
int64_t turn_over(struct device *);
/* Return whether other containers have used the device within the last second. */
static inline int has_neighbours(struct device *device) { return atomic_load_explicit(atomic_load(&device->neighbours), memory_order_relaxed); }
#endif
