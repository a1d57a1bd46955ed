// Creates and ends the components of berth-scheduler, in the right order.
//
// Owned by main; loop thread only.
#pragma once

#include <absl/status/status.h>

#include <memory>

#include "base/task_scope.h"
#include "base/unique_fd.h"
#include "scheduler/api/cluster_service.h"
#include "scheduler/config.h"
#include "scheduler/drive/volumes.h"
#include "scheduler/links/node_links.h"
#include "scheduler/links/server.h"

namespace berth::scheduler {

class Scheduler {
 public:
  Scheduler(asio::any_io_executor executor, Config config);
  // After Stop.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Makes the state directory (0700), locks it, and begins to serve. FAILED_PRECONDITION: another scheduler
  // has the directory or an address, or the record is another cluster's; the message names it.
  [[nodiscard]] Awaitable<absl::Status> Start();
  // Also after a Start that failed.
  [[nodiscard]] Awaitable<void> Stop();

 private:
  asio::any_io_executor executor_;
  Config config_;
  UniqueFd lock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<NodeRecords> node_records_;
  std::unique_ptr<OperationIds> operation_ids_;
  std::unique_ptr<NodeLinks> links_;
  std::unique_ptr<Volumes> volumes_;
  std::unique_ptr<LinkService> link_service_;
  std::unique_ptr<ClusterService> cluster_service_;
  std::unique_ptr<Server> server_;  // ends before what it serves
};

}  // namespace berth::scheduler
