// The scheduler's side of many links, in a process of its own, so that the kernel can say what it costs: the
// smallest scheduler there can be (small_scheduler.h), or the floor, which answers an empty message with an
// empty one. Both are gRPC's callback API over plain TCP, read one message at a time, and end with the bench.
//
// Blocks; any thread. Plain TCP: TLS would cost both the same, and so hide what lies between them.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <sys/types.h>

#include <string>

#include "base/unique_fd.h"
#include "bench/process_usage.h"

namespace berth {

enum class LinkService { kScheduler, kEmpty };

inline constexpr char kConnectMethod[] = "/berth.v1.SchedulerLink/Connect";

class LinkServer {
 public:
  // `self` is this program; `links`, how many it must have descriptors for. UNAVAILABLE: it does not serve,
  // and why.
  [[nodiscard]] static absl::StatusOr<LinkServer> Start(const std::string& self, LinkService service,
                                                        int links);

  [[nodiscard]] pid_t pid() const { return child_.pid(); }
  // "127.0.0.1:40123".
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  LinkServer(Child child, UniqueFd input, UniqueFd output, std::string address);
  Child child_;
  UniqueFd input_;   // the server ends when it is closed
  UniqueFd output_;  // kept: a server that cannot write what is wrong would end
  std::string address_;
};

// The program of the server: says its port, and serves until its standard input ends. The exit code.
int LinkServerMain(LinkService service, int links);

// So that this process can have `links` connections beside what it has anyway. PERMISSION_DENIED: the host
// does not allow it.
[[nodiscard]] absl::Status AllowDescriptors(int links);

}  // namespace berth
