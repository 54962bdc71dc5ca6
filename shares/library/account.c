/* The time of a device that this process uses, and its credit to work outside its container's turns. */
#include "account.h"

#define CREDIT_NS (5 * MS)      /* most credit, which a process begins with */
#define PAUSE_AFTER_NS (5 * MS) /* without a launch, the next one may pause the holder */
#define SLICED_NS (11 * MS / 10) /* a guest's first launch waits for the slice of the holder, and a switch */
enum { GUEST_FACTOR = 2 };      /* a guest pays for the switches that it causes */

static int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

void account_reset(struct account *account) {
  *account = (struct account){.credit = CREDIT_NS, .credited = now_ns()};
  pthread_mutex_init(&account->lock, NULL);
}

void account_grow(struct account *account, int64_t now, int64_t ppm) {
  pthread_mutex_lock(&account->lock);
  int64_t near = least_of(now, most_of(account->launched + QUIET_NS, account->credited));
  int64_t grows = near - account->credited + most_of(0, now - most_of(account->idle, near));
  account->credit = least_of(CREDIT_NS, account->credit + grows / 1000 * ppm / 1000);
  account->credited = now;
  pthread_mutex_unlock(&account->lock);
}

void account_waited(struct account *account, int64_t now) {
  pthread_mutex_lock(&account->lock);
  account->credited = now;
  pthread_mutex_unlock(&account->lock);
}

void account_correct(struct account *account, int64_t more) {
  pthread_mutex_lock(&account->lock);
  if (account->turn_idle) {
    account->turn_idle += more;
  } else {
    account->used += more;
    account->credit -= GUEST_FACTOR * more;
  }
  pthread_mutex_unlock(&account->lock);
}

void account_ended(struct account *account, int64_t now) {
  pthread_mutex_lock(&account->lock);
  account->ended = now;
  pthread_mutex_unlock(&account->lock);
}

void account_rest(struct account *account, int64_t now, int64_t over) {
  pthread_mutex_lock(&account->lock);
  int64_t until = now - over, rest = account->turn_idle ? most_of(0, account->turn_idle - until) : 0;
  if (account->turn_idle && account->ended > account->launched) {
    int64_t half = (account->ended - until - SLICED_NS) * 5 / 11; /* others delayed it, and it had a half, less switches */
    rest = most_of(rest, least_of(half, account->length));        /* the program may have seen the end late */
  }
  account->turn_idle = 0;
  account->credit -= GUEST_FACTOR * rest;
  account->used += rest;
  pthread_mutex_unlock(&account->lock);
}

int account_guest(struct account *account, int64_t now, int64_t length, int neighbours, int *pause) {
  pthread_mutex_lock(&account->lock);
  int guest = account->credit > length;
  *pause = guest && neighbours && !account->paused && account->credit > PAUSE_NS && now - account->launched >= PAUSE_AFTER_NS;
  if (*pause) account->paused = now;
  pthread_mutex_unlock(&account->lock);
  return guest;
}

void account_launch(struct account *account, int64_t now, int64_t length, int in_turn, int neighbours) {
  pthread_mutex_lock(&account->lock);
  int beside = !in_turn && neighbours;
  account->launched = now;
  account->length = length;
  account->idle = most_of(account->idle, now + beside * SLICED_NS) + length * (1 + beside);
  if (in_turn) {
    account->credit = most_of(0, account->credit - length);
    account->credited = now;
    account->turn_idle = account->idle;
  } else {
    int in_pause = account->paused && now + length <= account->paused + PAUSE_NS;
    if (!in_pause) account->credit -= GUEST_FACTOR * length;
    account->used += length;
  }
  pthread_mutex_unlock(&account->lock);
}

int account_ends_pause(struct account *account, int64_t now, int idle) {
  pthread_mutex_lock(&account->lock);
  int64_t passed = now - account->paused;
  int ends = account->paused && (passed >= PAUSE_NS || (idle && now - account->launched >= QUIET_NS));
  if (ends) {
    account->credit -= least_of(passed, PAUSE_NS);
    account->paused = 0;
  }
  pthread_mutex_unlock(&account->lock);
  return ends;
}

int64_t account_report(struct account *account, int64_t now, int64_t least, int64_t most) {
  pthread_mutex_lock(&account->lock);
  int due = account->used >= least || now - account->reported >= most;
  int64_t used = due ? account->used : 0;
  if (due) account->used = 0, account->reported = now;
  pthread_mutex_unlock(&account->lock);
  return used;
}
