/* Connect to the share server, and map the page that it shares with this container. */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "share.h"

enum { WELCOME_MS = 3000 }; /* a server that hangs accepts, and says nothing */

static int receive_welcome(int socket, struct frame *frame, int *page_fd) {
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {frame, sizeof *frame};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct pollfd one = {socket, POLLIN, 0};
  if (poll(&one, 1, WELCOME_MS) != 1 || recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof *frame) return 0;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_type == SCM_RIGHTS) memcpy(page_fd, CMSG_DATA(c), sizeof(int));
  }
  return 1;
}

static struct page *map_page(int fd, int64_t devices) {
  struct page *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) return NULL;
  if (devices <= MAX_DEVICES && page->devices == devices) return page;
  munmap(page, sizeof *page);
  return NULL;
}

int share_connect(int launches, struct connection *out) {
  struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET_PATH};
  struct frame frame = {.version = 1, .kind = HELLO, .a = getpid(), .b = now_ns(), .c = launches};
  int page_fd = -1;
  *out = (struct connection){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (out->fd < 0) return 0;
  if (!connect(out->fd, (struct sockaddr *)&address, sizeof address)) {
    send(out->fd, &frame, sizeof frame, MSG_NOSIGNAL); /* EPIPE from a server that refused already: its word can be read */
    if (!receive_welcome(out->fd, &frame, &page_fd)) frame.kind = 0;
    if (frame.kind == REFUSED) out->refusal = (int)frame.a;
    out->clock_ahead = frame.a - now_ns();
    out->takes_use = frame.c > 0;
    if (frame.kind == WELCOME) out->page = map_page(page_fd, frame.b);
  }
  if (page_fd >= 0) close(page_fd);
  if (!out->page) share_disconnect(out);
  return out->page != NULL;
}

void share_disconnect(struct connection *connection) {
  int fd = connection->fd;
  connection->fd = -1; /* first: a child that is forked now does not close it a second time */
  close(fd);
}
