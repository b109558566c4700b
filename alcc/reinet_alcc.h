/* SPDX-License-Identifier: Apache-2.0
 *
 * The gate as a library, for programs that are written for it; `reinet run` puts others behind it. The calls behave as
 * those of Berkeley's sockets do, with a send buffer that is as large as the cap. One process should use either the
 * library or the preload.
 */
#ifndef REINET_ALCC_H
#define REINET_ALCC_H

#include <stddef.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Says what the gate is to do, as REINET_ALCC does (alcc/laws/settings.hpp), such as "law=rule:1.5 target=1:30000". The
 * variable of the environment, where it is set, was read before. Call it before any other thread uses the library.
 * Returns 0, or -1 with EINVAL where the text makes no sense; nothing is changed then. */
int reinet_alcc_start(const char* settings);

/* As accept, connect and close. */
int reinet_alcc_accept(int fd, struct sockaddr* address, socklen_t* size);
int reinet_alcc_connect(int fd, const struct sockaddr* address, socklen_t size);
int reinet_alcc_close(int fd);

/* Before a connection or an epoll is closed by other means than reinet_alcc_close, as a language's own sockets are. */
void reinet_alcc_forget(int fd);

/* As send and sendmsg: where they need not wait (O_NONBLOCK, MSG_DONTWAIT), a closed gate gives a short count or
 * EAGAIN. */
ssize_t reinet_alcc_send(int fd, const void* data, size_t size, int flags);
ssize_t reinet_alcc_sendmsg(int fd, const struct msghdr* message, int flags);

/* As epoll_ctl. What is registered so is told as writable when its gate is open; epoll_wait is the kernel's own. With
 * EPOLLONESHOT the connection runs without a gate. */
int reinet_alcc_epoll_ctl(int epfd, int operation, int fd, struct epoll_event* event);

/* Waits until more may be sent, as poll does with POLLOUT: for at most timeout_ms, negative = without end. Returns 1
 * when something may be sent or the connection ended, 0 after the timeout, -1 with errno. A plain poll, and what was
 * registered by the kernel's own epoll_ctl, do not see the gate. */
int reinet_alcc_wait(int fd, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
