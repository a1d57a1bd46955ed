// Ends what a consumer consists of, since its volumes are to leave: asks first (SIGTERM, systemd's stop),
// kills after a grace period, and checks whether it has ended.
//
// One per Mounter; loop thread. Signals go through pidfds, so never to another process with the same number.
// What this node needs to live is refused as a consumer (FAILED_PRECONDITION, before anything is done): PID
// 1, berthd itself, a cgroup with one of them in it, the unit and slices that berthd is in, the plugins'.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/systemd_bus.h"
#include "base/task_scope.h"
#include "berth/v1/values.h"
#include "consumers/consumer_watch.h"

namespace berth {

// How consumers are ended.
struct ConsumerEndOptions {
  // Between being asked to end (SIGTERM) and being killed.
  Duration grace = std::chrono::seconds(10);
  // The slice and the directory of the plugins' control groups. No consumer in them is ended.
  std::string plugins_slice = "berth-plugins.slice";
  std::string plugins_directory = "berth-plugins";
};

class ConsumerEnd {
 public:
  // `watch` outlives it. The last is for tests: where systemd is met.
  ConsumerEnd(ConsumerWatch& watch, ConsumerEndOptions options,
              std::vector<SystemdBus::Address> systemd = SystemdBus::DefaultAddresses())
      : watch_(watch), options_(std::move(options)), systemd_(std::move(systemd)) {}

  // OK once it has ended, as the kernel or systemd says; at once if it has ended already. kUnknown returns
  // OK. `life` must come from ConsumerWatch::Identify and be of this boot (PublicationRecord::Consumer):
  // names of units and groups mean others in another boot. DEADLINE_EXCEEDED: it was asked to end and has not
  // yet, which is all that is done if `deadline` comes before the end of the grace period; or it was killed,
  // and has not ended by then (a process that hangs in the kernel does not). FAILED_PRECONDITION: it must
  // never be ended. Any other error: what kept it from being ended.
  [[nodiscard]] Awaitable<absl::Status> End(ConsumerLife life, TimePoint deadline) const;

 private:
  [[nodiscard]] Awaitable<absl::Status> EndProcess(ConsumerLife life, TimePoint deadline) const;
  [[nodiscard]] Awaitable<absl::Status> EndCgroup(ConsumerLife life, TimePoint deadline) const;
  [[nodiscard]] Awaitable<absl::Status> EndUnit(ConsumerLife life, TimePoint deadline) const;
  // It was asked. True: it ended by itself; false: the grace is over, and it has to be killed.
  // DEADLINE_EXCEEDED: `deadline` came before that.
  [[nodiscard]] Awaitable<absl::StatusOr<bool>> EndsInGrace(ConsumerLife life, TimePoint deadline) const;
  // It was killed.
  [[nodiscard]] Awaitable<absl::Status> AwaitEnd(ConsumerLife life, TimePoint deadline) const;

  ConsumerWatch& watch_;
  ConsumerEndOptions options_;
  std::vector<SystemdBus::Address> systemd_;
};

}  // namespace berth
