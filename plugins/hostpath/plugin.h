// The whole plugin but for its socket, its signals and its end, which are its program's (main.cc, and
// tests/fault_plugin, which puts a layer of its own in front of the services).
//
// Made and destroyed by main's thread; the services answer on gRPC's.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <thread>

#include "plugins/hostpath/context.h"
#include "plugins/hostpath/controller_service.h"
#include "plugins/hostpath/identity_service.h"
#include "plugins/hostpath/node_service.h"

namespace berth::hostpath {

class Plugin {
 public:
  // Takes the state directory, repairs what a crash left behind, and makes the services. `options` outlives
  // it. FAILED_PRECONDITION where another process has the directory.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Plugin>> Open(const Options& options);
  ~Plugin();
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  // Begins to delete, on a thread of its own, what an earlier run could not finish to delete. Once.
  void StartCleaning();
  // Ends that early; the next run goes on with it.
  void StopCleaning();

  [[nodiscard]] IdentityService& identity() { return identity_; }
  [[nodiscard]] ControllerService& controller() { return controller_; }
  [[nodiscard]] NodeService& node() { return node_; }
  [[nodiscard]] Store& store() { return *store_; }
  [[nodiscard]] ActiveCalls& calls() { return calls_; }

 private:
  Plugin(const Options& options, const Machine& machine, std::unique_ptr<Storage> storage,
         std::unique_ptr<Store> store);

  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Store> store_;
  OperationLocks locks_;
  ActiveCalls calls_;
  Context context_;
  IdentityService identity_;
  ControllerService controller_;
  NodeService node_;
  std::thread cleaner_;
};

}  // namespace berth::hostpath
