// Who has which file systems and block devices, anywhere on the node: asked of the kernel (census_pass.h says
// how), for all volumes that ask at the same time.
//
//   Take ──► waiting ──┐ one pass at a time: all that wait when it begins share it
//   Take ──► waiting ──┴──► census ──► each gets the part about its objects (64 at a time)
//
// Mounts alone are listed on a thread of berthd, where the kernel lists namespaces. What looks at processes,
// or enters namespaces, runs in berth-mount-helper. Questions about mounts alone are not held up by those
// about processes, which take longer.
//
// Owned by the MounterContext; loop thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "mounts/census_question.h"
#include "mounts/mount_helper.h"

namespace berth {

class Census {
 public:
  // The recorded mounts of all volumes that have a file system with one of these device numbers.
  using RecordedMounts = std::function<std::vector<uint64_t>(const std::set<dev_t>& devices)>;
  Census(const asio::any_io_executor& executor, TaskScope& scope, MountHelper& helper,
         RecordedMounts recorded);
  ~Census();
  Census(const Census&) = delete;
  Census& operator=(const Census&) = delete;

  // The answer for `question.objects`, begun after this call. It may be incomplete: it did not come in time,
  // or the helper could not be run, or not everything could be looked at. What it holds is true then, too.
  [[nodiscard]] Awaitable<CensusAnswer> Take(CensusQuestion question, TimePoint deadline);

  // How many passes were begun, for tests.
  [[nodiscard]] uint64_t taken() const { return taken_; }

  // For tests and the bench.
  void AsKernel(KernelAs kernel) { kernel_ = kernel; }

 private:
  struct Query;
  struct Line {
    std::vector<std::shared_ptr<Query>> waiting;
    bool running = false;
  };
  [[nodiscard]] Awaitable<void> Run(Line* line);
  [[nodiscard]] Awaitable<CensusAnswer> Pass(CensusQuestion question, bool users);

  TaskScope& scope_;
  MountHelper& helper_;
  RecordedMounts recorded_;
  Line mounts_;
  Line users_;
  Condition answered_;
  uint64_t taken_ = 0;
  KernelAs kernel_ = KernelAs::kThis;
};

}  // namespace berth
