/* The time of a device that this process uses, and its credit to work outside its container's turns.
 *
 * The credit grows at the rate of the container's request while the process leaves the device alone: shortly after a launch, and
 * without work on the device. So a program that always wants the card has none and takes turns, and a program that works for a
 * moment now and then may launch at once, as a guest beside the holder of the turn. Times are in nanoseconds. */
#ifndef LADING_ACCOUNT_H
#define LADING_ACCOUNT_H
#include <pthread.h>
#include <stdint.h>

#include "share.h"

#define PAUSE_NS (2 * MS)  /* longest pause of the holder for this process */
#define QUIET_NS (MS / 10) /* without a launch, a burst of work is over */

struct account {
  pthread_mutex_t lock;
  int64_t credit, credited; /* time that the process may use as a guest; when it last grew */
  int64_t launched, idle;   /* the last launch; when the device should have done all work */
  int64_t length;           /* of the last launch */
  int64_t ended;            /* when the program last saw the end of all its launches */
  int64_t turn_idle;        /* when the device should have done the launches of the last turn; 0: they are counted */
  int64_t used;             /* outside turns, and not reported yet */
  int64_t reported;         /* when it was last reported */
  int64_t paused;           /* since when the holder is paused for this process; 0: it is not */
};

void account_reset(struct account *);
/* Let the credit grow until now. `ppm`: the process's part of the request. */
void account_grow(struct account *, int64_t now, int64_t ppm);
/* Let the credit not grow for the time in which the process waited for a turn. */
void account_waited(struct account *, int64_t now);
/* Count time that earlier launches took beyond what was expected. */
void account_correct(struct account *, int64_t more);
/* Note that the program has waited for the end of all its launches. */
void account_ended(struct account *, int64_t now);
/* Count the work that was left at the end of the last turn, `over` ago: it runs beside the next turn. */
void account_rest(struct account *, int64_t now, int64_t over);
/* Return whether a launch of this length may be made outside a turn. `*pause`: the holder should be paused for it. */
int account_guest(struct account *, int64_t now, int64_t length, int neighbours, int *pause);
/* Count a launch. */
void account_launch(struct account *, int64_t now, int64_t length, int in_turn, int neighbours);
/* Return whether a pause is over: the burst of work, or its time. */
int account_ends_pause(struct account *, int64_t now, int idle);
/* Return the used time to report now, if it is this much at least, or was not reported for `most`; else 0. */
int64_t account_report(struct account *, int64_t now, int64_t least, int64_t most);
#endif
