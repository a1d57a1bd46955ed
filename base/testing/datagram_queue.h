// For tests: a receiver of datagrams that does not read.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace berth {

// Sends "other" to `address` until its queue is full, whatever net.unix.max_dgram_qlen is. A sender's own
// buffer may be full before: then another one goes on.
inline void FillDatagramQueue(const sockaddr* address, socklen_t size) {
  for (int senders = 0; senders < 1000; ++senders) {
    const UniqueFd sender(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_EQ(connect(sender.get(), address, size), 0);
    int sent = 0;
    while (send(sender.get(), "other", 5, 0) >= 0) ++sent;
    ASSERT_EQ(errno, EAGAIN);
    if (sent == 0) return;
  }
  FAIL() << "the queue does not fill";
}

}  // namespace berth
