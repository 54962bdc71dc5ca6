/* Preloaded into ip(8) or rdma(8): every netlink socket of the program is a socket that we hold the other end of, so that what
 * it asks comes to a test, and what the test answers is to it the kernel's. NETLINK_PEER is that socket's descriptor. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int peer(void) { return atoi(getenv("NETLINK_PEER")); }

static int is_peer(int fd)
{
	int type;
	socklen_t size = sizeof type;
	return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &type, &size) == 0 && type == AF_UNIX;
}

static void from_kernel(void *address, socklen_t *size)
{
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	if (address && *size >= sizeof kernel) {
		memcpy(address, &kernel, sizeof kernel);
		*size = sizeof kernel;
	}
}

int socket(int domain, int type, int protocol)
{
	if (domain == AF_NETLINK)
		return dup(peer());
	return syscall(SYS_socket, domain, type, protocol);
}

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
	return is_peer(fd) ? 0 : syscall(SYS_bind, fd, address, size);
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
	return is_peer(fd) ? 0 : syscall(SYS_setsockopt, fd, level, name, value, size);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *size)
{
	if (!is_peer(fd))
		return syscall(SYS_getsockname, fd, address, size);
	from_kernel(address, size);
	return 0;
}

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length)
{
	if (is_peer(fd))
		to = NULL, length = 0;
	return syscall(SYS_sendto, fd, data, size, flags, to, length);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	struct msghdr plain = *message;
	if (is_peer(fd))
		plain.msg_name = NULL, plain.msg_namelen = 0;
	return syscall(SYS_sendmsg, fd, &plain, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	struct msghdr plain = *message;
	if (!is_peer(fd))
		return syscall(SYS_recvmsg, fd, message, flags);
	plain.msg_name = NULL, plain.msg_namelen = 0;
	ssize_t got = syscall(SYS_recvmsg, fd, &plain, flags);
	message->msg_flags = plain.msg_flags;
	from_kernel(message->msg_name, &message->msg_namelen);
	return got;
}
