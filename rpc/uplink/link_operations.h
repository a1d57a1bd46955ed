// What the scheduler asks this node for: an operation is admitted, done once, and its result kept until the
// scheduler has acknowledged it, also over a crash of berthd.
//
//   Operation ──▶ lease ──▶ OperationTable ──▶ OperationRunner ──▶ result ──▶ row ──▶ the stream
//
// Owned by the Uplink; loop thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "rpc/uplink/operation_check.h"
#include "rpc/uplink/operation_runner.h"
#include "rpc/uplink/uplink_context.h"

namespace berth {

class LinkOperations {
 public:
  explicit LinkOperations(UplinkContext& link);
  ~LinkOperations();

  // Before the destructor: ends what runs. The scheduler asks again for what has no result.
  [[nodiscard]] Awaitable<void> Shutdown() { return tasks_.Join(); }

  // See LinkHost.
  [[nodiscard]] std::optional<v1::OperationResult> OnOperation(v1::Operation operation);
  void OnCancel(uint64_t operation_id);
  void OnAcknowledge(const v1::Acknowledge& acknowledge);

 private:
  struct Running;

  [[nodiscard]] Awaitable<void> Execute(v1::Operation operation, OperationFacts facts);
  // A publish of a volume that the node is releasing now.
  [[nodiscard]] bool IsBeingReleased(const v1::Operation& operation) const;
  [[nodiscard]] Awaitable<void> KeepResult(v1::OperationResult result, std::string subject);

  UplinkContext& link_;
  OperationRunner runner_;
  std::map<uint64_t, std::shared_ptr<Running>> running_;
  TaskScope tasks_;
};

}  // namespace berth
