/* The time of simulated cards, by arithmetic: a file in FAKE_CUDA_DIR has what each card does and will do, and each call first
 * brings all cards up to the present. So no process has to run for the cards, and one that waits sleeps until its work is done.
 *
 * A card has the kernels of one context at a time, in the order of their launches. If another context has work too, it gets the
 * card at the end of a slice, in turn. The figures are those of a model that was fitted to a card (H200, driver 580.159): two busy
 * programs get 90.7 % together; one beside another that works for 1 ms of 20 keeps 97.9 %.
 *
 * Locks of the open file (fcntl) guard its bytes: the kernel ends them with their process, in whatever container it runs. Byte 0 is
 * the lock of the whole file; a process has the byte of each queue of its own, so that the work of a dead one is found.
 */
#define _GNU_SOURCE
#include "fake_card.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define US 1000LL
#define MS 1000000LL
#define SLICE_NS (1 * MS)    /* time of a context while others have work: at least 0.8 ms (seen) */
#define SWITCH_NS (93 * US)  /* in which the card works for none: 9 % of all time if two are busy (seen) */
#define GIVE_WAY_NS (7 * US) /* after which a context without work gives way */
#define SPIN_NS (50 * US)    /* the steps in which a kernel waits for another */
#define LIVENESS_NS (1 * MS) /* between two looks for queues whose process is dead */
#define LOOK_NS (20 * MS)    /* after which one that waits looks again: another process may have ended */
#define MEETING_LOOK_NS MS   /* the same for a kernel that waits for others: the card's own work does not tell its end */
enum { CARDS = 16, SLOTS = 128, MARKS = 1024, MEETINGS = 256, COUNTERS = 64, LOCK_TRIES = 5000, LOCK_PAUSE_US = 20 };

struct slot { /* number 0 is none */
  int used, is_closed;       /* closed: what is launched is not done any more */
  int64_t submitted, worked; /* in all, in ns of the device */
  int64_t emptied;           /* when it last had no more work */
  int64_t stop;              /* the place of its first kernel that waits for another; INT64_MAX: none does */
};
struct schedule {
  int64_t at;            /* the card is known up to then */
  int64_t loaded, slice; /* when the present context has the card, and since when its slices count */
  int64_t looked;        /* time of the last look for dead processes */
  int current, slots;    /* place of the context that has the card; the highest number in use */
  struct slot slot[SLOTS];
};
/* Marks and meetings are rings: `first` is the oldest that was not reached. */
struct ring {
  unsigned first, next;
};
struct meeting {
  int64_t place, counter, least;
  int has_come;
};
struct card {
  char uuid[48];
  struct schedule schedule;
  struct ring marks[SLOTS], meetings[SLOTS];
  struct {
    int64_t place, at; /* `at` 0: not reached */
  } mark[SLOTS][MARKS];
  struct meeting meeting[SLOTS][MEETINGS];
};
static struct machine {
  struct {
    int64_t name, value;
  } counters[COUNTERS];
  struct card cards[CARDS];
} *machine;
static int file = -1;
static struct mark *owners[CARDS][SLOTS][MARKS]; /* the marks of this process in the rings */
static struct work *own[CARDS][SLOTS];           /* the queues of this process */
static int64_t worked_before[CARDS];             /* time of queues of this process that were ended */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int number_of(const struct card *card) { return (int)(card - machine->cards); }

/* The file */

static struct flock byte(int type, int64_t at) {
  return (struct flock){.l_type = (short)type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}
static int64_t byte_of(const struct card *card, int slot) { return 1 + number_of(card) * SLOTS + slot; }

/* A process that is stopped while it has the lock keeps it. So others go on without after a while: at worst the work of one step is
 * done twice, or lost. */
static void lock_file(void) {
  static int is_stuck;
  struct flock all = byte(F_WRLCK, 0);
  pthread_mutex_lock(&lock);
  int tries = is_stuck ? 1 : LOCK_TRIES, got = 0;
  while (!(got = !fcntl(file, F_OFD_SETLK, &all)) && --tries) usleep(LOCK_PAUSE_US);
  is_stuck = !got;
}
static void unlock_file(void) {
  struct flock all = byte(F_UNLCK, 0);
  fcntl(file, F_OFD_SETLK, &all);
  pthread_mutex_unlock(&lock);
}

/* A kernel that waits for others */

static int64_t *find_counter(int64_t name) {
  for (int i = 0; i < COUNTERS; i++) {
    if (machine->counters[i].name && machine->counters[i].name != name) continue;
    machine->counters[i].name = name;
    return &machine->counters[i].value;
  }
  fprintf(stderr, "fake CUDA: kernels wait by more than %d counters\n", COUNTERS);
  abort();
}

/* Have the first such kernel of a queue go on if the counter allows it. */
static void try_meeting(struct card *card, int number) {
  struct ring *ring = &card->meetings[number];
  struct meeting *meeting = &card->meeting[number][ring->first % MEETINGS];
  int64_t *counter = find_counter(meeting->counter);
  if (!meeting->has_come) ++*counter;
  meeting->has_come = 1;
  if (*counter < meeting->least) return;
  ring->first++;
  card->schedule.slot[number].stop = ring->first == ring->next ? INT64_MAX : card->meeting[number][ring->first % MEETINGS].place;
}

/* The time of a card */

static int has_work(const struct slot *slot) { return slot->worked < slot->submitted; }

/* Return the next context after the present one that has work; 0 if no other has. */
static int find_other(const struct schedule *s) {
  for (int i = 1; i <= s->slots; i++) {
    int number = (s->current + i - 1) % s->slots + 1;
    if (number != s->current && s->slot[number].used && has_work(&s->slot[number])) return number;
  }
  return 0;
}

static void switch_to(struct schedule *s, int number) {
  s->current = number;
  s->loaded = s->at + SWITCH_NS;
}

/* Note when the marks of a queue were reached while the device works for it from `began` on. */
static void reach_marks(struct card *card, int number, int64_t began, int64_t from, int64_t to) {
  struct ring *ring = &card->marks[number];
  for (unsigned i = ring->first; i != ring->next; i++) {
    int64_t place = card->mark[number][i % MARKS].place, *at = &card->mark[number][i % MARKS].at;
    if (!*at && place <= to) *at = began + place - from;
  }
  while (ring->first != ring->next && card->mark[number][ring->first % MARKS].at) ring->first++;
}

/* Go on to the next change of what the card does, no further than `limit`. `card` is NULL if that is only a forecast. A process that
 * is killed in here leaves the card a step behind or ahead, but able to go on. */
static void step(struct schedule *s, int64_t limit, struct card *card) {
  struct slot *slot = s->current ? &s->slot[s->current] : NULL;
  int other = find_other(s);
  int64_t began = s->at;
  if (began < s->loaded) {
    s->at = least(limit, s->loaded);
    s->slice = s->at;
  } else if (slot && has_work(slot)) {
    int64_t cut = other ? s->slice + ((began - s->slice) / SLICE_NS + 1) * SLICE_NS : INT64_MAX, to = least(limit, cut);
    if (slot->worked == slot->stop && card) try_meeting(card, s->current);
    if (slot->worked == slot->stop) {
      s->at = least(to, began + SPIN_NS);
    } else {
      int64_t from = slot->worked, end = least(slot->submitted, slot->stop);
      s->at = least(to, began + end - from);
      if (card) reach_marks(card, s->current, began, from, from + s->at - began);
      slot->worked += s->at - began;
      slot->emptied = s->at;
    }
    if (s->at == cut && has_work(slot)) switch_to(s, other);
  } else if (!other) {
    s->at = limit;
  } else {
    int64_t leaves = slot ? slot->emptied + GIVE_WAY_NS : 0;
    s->at = least(limit, leaves > began ? leaves : began);
    if (s->at >= leaves) switch_to(s, other);
  }
}

static void drop(struct card *card, int number) {
  struct schedule *s = &card->schedule;
  s->slot[number] = (struct slot){0};
  card->marks[number] = card->meetings[number] = (struct ring){0};
  if (s->current == number) s->current = 0;
}

static int is_dead(const struct card *card, int number) {
  struct flock its = byte(F_WRLCK, byte_of(card, number));
  return !own[number_of(card)][number] && !fcntl(file, F_OFD_GETLK, &its) && its.l_type == F_UNLCK;
}

/* Bring all cards up to the present: they wait for each other. */
static int64_t advance(void) {
  int64_t now = now_ns();
  for (;;) {
    struct card *behind = NULL;
    for (struct card *card = machine->cards; card < machine->cards + CARDS && *card->uuid; card++) {
      if (card->schedule.at < now && (!behind || card->schedule.at < behind->schedule.at)) behind = card;
    }
    if (!behind) break;
    step(&behind->schedule, now, behind);
  }
  for (struct card *card = machine->cards; card < machine->cards + CARDS && *card->uuid; card++) {
    struct schedule *s = &card->schedule;
    if (now - s->looked < LIVENESS_NS) continue;
    s->looked = now;
    for (int i = 1; i <= s->slots; i++) {
      if (s->slot[i].used && has_work(&s->slot[i]) && is_dead(card, i)) drop(card, i);
    }
  }
  return now;
}

/* Return when to look for the end of a kernel: when it is reached, if no process launches anything meanwhile. */
static int64_t forecast(const struct work *work, int64_t end, int64_t now) {
  struct schedule s = work->card->schedule;
  struct slot *slot = &s.slot[work->slot];
  int64_t limit = now + (slot->stop < end ? MEETING_LOOK_NS : LOOK_NS);
  while (slot->worked < end && s.at < limit) step(&s, limit, NULL);
  return s.at;
}

/* The calls */

/* A child has no part in the locks of its parent. */
static void after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  close(file);
  file = -1;
}

static int open_machine(const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/cards", folder);
  file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0 || ftruncate(file, sizeof *machine)) return 0;
  void *map = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (map == MAP_FAILED) return 0;
  machine = map;
  pthread_atfork(NULL, NULL, after_fork);
  return 1;
}

struct card *card_open(const char *folder, const char *uuid) {
  if (!machine && !open_machine(folder)) return NULL;
  lock_file();
  struct card *card = machine->cards;
  while (card < machine->cards + CARDS && *card->uuid && strcmp(card->uuid, uuid)) card++;
  if (card == machine->cards + CARDS) card = NULL;
  if (card && card->schedule.at > now_ns()) memset(card, 0, sizeof *card); /* the file is older than the start of the machine */
  if (card && !*card->uuid) snprintf(card->uuid, sizeof card->uuid, "%s", uuid);
  unlock_file();
  return card;
}

static void claim_slot(struct work *work) {
  struct schedule *s = &work->card->schedule;
  int number = 1, card = number_of(work->card);
  while (number < SLOTS && s->slot[number].used && !is_dead(work->card, number)) number++;
  struct flock its = byte(F_WRLCK, byte_of(work->card, number));
  if (number == SLOTS || fcntl(file, F_OFD_SETLK, &its)) {
    fprintf(stderr, "fake CUDA: a card has more than %d contexts\n", SLOTS - 1);
    abort();
  }
  drop(work->card, number);
  s->slot[number] = (struct slot){1, 0, work->began, work->began, 0, INT64_MAX};
  if (s->slots < number) s->slots = number;
  own[card][number] = work;
  work->slot = number;
}

static int has_reached(const struct work *work, int64_t end) {
  return !work->slot || work->card->schedule.slot[work->slot].worked >= end;
}

/* Sleep until then, without the lock of the file meanwhile. */
static void sleep_unlocked(int64_t at) {
  struct timespec t = {at / 1000000000, at % 1000000000};
  unlock_file();
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
  lock_file();
}

static struct slot *slot_of(struct work *work) {
  if (!work->slot) claim_slot(work);
  return &work->card->schedule.slot[work->slot];
}

int64_t card_submit(struct work *work, int64_t ns, int64_t *when) {
  lock_file();
  *when = advance();
  struct slot *slot = slot_of(work);
  if (!slot->is_closed) slot->submitted += ns;
  int64_t end = slot->submitted;
  unlock_file();
  return end;
}

void card_close(struct work *work) {
  lock_file();
  slot_of(work)->is_closed = 1;
  unlock_file();
}

int64_t card_meet(struct work *work, int64_t counter, int64_t least_value) {
  lock_file();
  advance();
  struct slot *slot = slot_of(work);
  struct ring *ring = &work->card->meetings[work->slot];
  int64_t place = slot->submitted;
  if (slot->is_closed) {
    unlock_file();
    return place;
  }
  if (ring->next - ring->first == MEETINGS) {
    fprintf(stderr, "fake CUDA: more than %d kernels of a context wait for others\n", MEETINGS);
    abort();
  }
  slot->submitted++; /* it takes some time after the meeting, so that its end is a place of its own */
  work->card->meeting[work->slot][ring->next++ % MEETINGS] = (struct meeting){place, counter, least_value, 0};
  if (slot->stop == INT64_MAX) slot->stop = place;
  unlock_file();
  return place + 1;
}

int card_reached(struct work *work, int64_t end) {
  lock_file();
  advance();
  int reached = has_reached(work, end);
  unlock_file();
  return reached;
}

void card_wait(struct work *work, int64_t end) {
  lock_file();
  for (int64_t now = advance(); !has_reached(work, end); now = advance()) sleep_unlocked(forecast(work, end, now));
  unlock_file();
}

/* Take a mark out of its ring, with when it was reached if it was. */
static void take_mark(struct mark *mark) {
  if (!mark->work) return;
  int card = number_of(mark->work->card), slot = mark->work->slot;
  mark->at = mark->work->card->mark[slot][mark->number % MARKS].at;
  owners[card][slot][mark->number % MARKS] = NULL;
  mark->work = NULL;
}

void card_mark(struct mark *mark, struct work *work, int64_t end) {
  lock_file();
  int64_t now = advance();
  struct ring *ring = &work->card->marks[work->slot];
  while (!has_reached(work, end) && ring->next - ring->first == MARKS) { /* the card takes no more: the program waits */
    sleep_unlocked(forecast(work, end, now));
    now = advance();
  }
  take_mark(mark);
  mark->at = now;
  if (!has_reached(work, end)) {
    unsigned at = ring->next % MARKS;
    struct mark **owner = &owners[number_of(work->card)][work->slot][at];
    if (*owner) take_mark(*owner);
    *owner = mark;
    work->card->mark[work->slot][at].place = end;
    work->card->mark[work->slot][at].at = 0;
    mark->work = work;
    mark->number = ring->next++;
  }
  unlock_file();
}

void card_unmark(struct mark *mark) {
  lock_file();
  take_mark(mark);
  unlock_file();
}

static int has_passed(struct mark *mark) {
  if (mark->work && mark->work->card->mark[mark->work->slot][mark->number % MARKS].at) take_mark(mark);
  return !mark->work;
}

int card_passed(struct mark *mark) {
  lock_file();
  advance();
  int passed = has_passed(mark);
  unlock_file();
  return passed;
}

void card_pass(struct mark *mark) {
  lock_file();
  for (int64_t now = advance(); !has_passed(mark); now = advance()) {
    struct work *work = mark->work;
    sleep_unlocked(forecast(work, work->card->mark[work->slot][mark->number % MARKS].place, now));
  }
  unlock_file();
}

static int64_t worked_in(const struct work *work) { return work->card->schedule.slot[work->slot].worked - work->began; }

int64_t card_worked(struct card *card) {
  lock_file();
  advance();
  int64_t worked = worked_before[number_of(card)];
  for (int i = 1; i <= card->schedule.slots; i++) {
    if (own[number_of(card)][i]) worked += worked_in(own[number_of(card)][i]);
  }
  unlock_file();
  return worked;
}

void card_end(struct work *work) {
  if (!work->slot) return;
  lock_file();
  int64_t now = advance();
  int card = number_of(work->card);
  for (int i = 0; i < MARKS; i++) {
    struct mark *mark = owners[card][work->slot][i];
    if (!mark) continue;
    take_mark(mark);
    if (!mark->at) mark->at = now;
  }
  worked_before[card] += worked_in(work);
  work->began = slot_of(work)->submitted;
  struct flock its = byte(F_UNLCK, byte_of(work->card, work->slot));
  drop(work->card, work->slot);
  fcntl(file, F_OFD_SETLK, &its);
  own[card][work->slot] = NULL;
  work->slot = 0;
  unlock_file();
}
