// The ground of the tests of what a scheduler does with a node: a scheduler, and a node that is linked to it
// over a socket of this machine. tests/harness/link_test.h has a link that fails, with certificates.
//
// After each test the invariants of FaultTest are checked.
//
// One thread.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tests/harness/fault_test.h"
#include "tests/harness/scheduler.h"

namespace berth {

class SchedulerTest : public FaultTest {
 protected:
  static constexpr const char* kNode = "node-1";

  TestScheduler& StartScheduler(TestScheduler::Options options = {});
  // A node that is linked to the scheduler, and has reported everything. `settings` stand in berthd.toml, in
  // the table [scheduler] and after it, `sections` in the file of the plugin with faults.
  void StartLinked(const std::string& settings = "", const std::string& sections = "");
  // The scheduler is away for this node from now on; and there again.
  void GoAway();
  void ComeBack() { scheduler_->Refuse(std::nullopt); }

  // Operations on a volume of the plugin with faults, for a consumer of the namespace "jobs"; a publish has a
  // secret.
  [[nodiscard]] static v1::Operation Publishing(const std::string& volume, const std::string& consumer);
  [[nodiscard]] static v1::Operation Unpublishing(const std::string& volume, const std::string& consumer);
  // Asks for it and waits until it is done; the target.
  std::string PublishFromAfar(const std::string& volume, const std::string& consumer = "web");
  void UnpublishFromAfar(const std::string& volume, const std::string& consumer = "web");

  // Wait until the node has reported so.
  TestScheduler::Node WaitVolumeTold(const std::string& volume, v1::VolumeState state);
  void WaitVolumeGone(const std::string& volume);
  void WaitLease(v1::LeaseState state);

  // A node's end is the end of all processes of the test, so another one lives until the test is over.
  std::unique_ptr<Node> second_;
  std::unique_ptr<TestScheduler> scheduler_;
};

}  // namespace berth
