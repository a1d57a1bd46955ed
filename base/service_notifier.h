// Reports this process's state to the service manager: sd_notify(3) that never blocks.
//
// sd_notify waits while the manager's queue is full: net.unix.max_dgram_qlen messages, 10 by default. A
// manager that reads nothing would stop the loop. Loop thread.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <optional>
#include <string>

#include "base/task_scope.h"

namespace berth {

class ServiceNotifier {
 public:
  // `socket`: the value of $NOTIFY_SOCKET, a path or "@name". Empty: there is no manager, and nothing is
  // sent.
  ServiceNotifier(asio::any_io_executor executor, std::string socket);

  // Sends `state` at once. Where the queue is full, sends it when there is space; a later state replaces it
  // until then.
  void Send(std::string state);
  // Drops what is not sent yet. Before the destructor.
  [[nodiscard]] Awaitable<void> Join() { return tasks_.Join(); }

 private:
  [[nodiscard]] bool Connect();
  // False: the queue is full.
  [[nodiscard]] bool TrySend();
  [[nodiscard]] Awaitable<void> SendPending();

  std::string address_;
  asio::posix::stream_descriptor socket_;
  std::optional<std::string> pending_;
  TaskScope tasks_;
};

}  // namespace berth
