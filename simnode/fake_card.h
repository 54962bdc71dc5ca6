/* The time of simulated cards, which the processes of all containers share: whose kernels run when. */
#ifndef FAKE_CARD_H
#define FAKE_CARD_H
#include <stdint.h>

struct card;

/* The kernels of a context on a card, one after another. Work is counted in ns of the device: a kernel is done when the device has
 * worked for the queue up to the kernel's end. */
struct work {
  struct card *card;
  int slot; /* 0: nothing was launched yet */
  int64_t began; /* begin of its places: earlier ones are of work that was ended */
};
/* A place in a queue, and when the device reached it. */
struct mark {
  struct work *work; /* NULL: it was reached */
  int64_t at;        /* ns of CLOCK_MONOTONIC, once it was reached */
  unsigned number;
};

/* Return the card of this UUID, whose state is in the folder; NULL if it cannot be used. */
struct card *card_open(const char *folder, const char *uuid);
/* Add a kernel that takes so long. Return its end; at `when` it reached the card. */
int64_t card_submit(struct work *, int64_t ns, int64_t *when);
/* Have all that is launched later end where the queue ends now: it is not done. */
void card_close(struct work *);
/* Add a kernel that adds 1 to a counter and ends when the counter has reached `least`: by kernels on other cards, or on this one. */
int64_t card_meet(struct work *, int64_t counter, int64_t least);
/* Return whether the card has reached the end of a kernel; wait until it has. */
int card_reached(struct work *, int64_t end);
void card_wait(struct work *, int64_t end);
/* Put a mark behind a kernel, in place of where the mark was; forget a mark. */
void card_mark(struct mark *, struct work *, int64_t end);
void card_unmark(struct mark *);
/* Return whether the card has reached the mark, `at` which time; wait until it has. */
int card_passed(struct mark *);
void card_pass(struct mark *);
/* Return for how long the card has worked for this process, in ns. */
int64_t card_worked(struct card *);
/* End the queue, with all work in it. It may be used again. */
void card_end(struct work *);
#endif
