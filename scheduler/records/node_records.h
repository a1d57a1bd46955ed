// The nodes of the cluster, as they are recorded. Loop thread.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/task_scope.h"
#include "scheduler/records/term.h"
#include "scheduler/store/store.h"

namespace berth::scheduler {

struct NodeRecord {
  std::string name;
  std::string instance_id;
  std::string boot_id;
  std::string previous_boot_id;
  // Two machines have this name and instance: neither is served until an operator has decided.
  bool two_machines = false;
  // The latest of those that this machine had before, with other state directories.
  std::vector<std::string> earlier_instance_ids = {};

  // Whether something of that instance is this machine's.
  [[nodiscard]] bool IsInstance(const std::string& instance) const;
  bool operator==(const NodeRecord&) const = default;
};

class NodeRecords {
 public:
  // `store` outlives it.
  NodeRecords(Store& store, Term term) : store_(store), term_(term) {}

  // All that there are, by name. DATA_LOSS, FAILED_PRECONDITION: one cannot be read (codec.h).
  [[nodiscard]] Awaitable<absl::StatusOr<std::vector<NodeRecord>>> Load();

  // In place of the one with this name. Durable when this returns OK. One at a time for each name. ABORTED:
  // another scheduler has begun a term. After any error it is not known whether it was written; another Write
  // may follow.
  [[nodiscard]] Awaitable<absl::Status> Write(NodeRecord record);

  // OK also if there is no record of `name`. Other errors as in Write.
  [[nodiscard]] Awaitable<absl::Status> Delete(std::string name);

  // That the record of `name` is as it was read or written last. Unset: it is being written.
  [[nodiscard]] std::optional<Compare> Holds(const std::string& name) const;

 private:
  struct Stored {
    std::string key;
    uint64_t revision = 0;
  };

  // What is stored under `name`, which is not known until the next commit has ended; without a key: nothing.
  [[nodiscard]] Awaitable<absl::StatusOr<Stored>> TakeStored(std::string name);

  Store& store_;
  Term term_;
  std::map<std::string, Stored> stored_;  // by name, as far as it is known
};

}  // namespace berth::scheduler
