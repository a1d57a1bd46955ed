// Where the link keeps what must outlive berthd: results, ended consumers, volumes that were given up. A row
// is a key and a few bytes. Loop thread; outlives
// its users.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "base/task_scope.h"

namespace berth {

class LinkRows {
 public:
  virtual ~LinkRows() = default;
  // Returns once the row is durable, in place of the last one of that key. An error says that it may not be:
  // RESOURCE_EXHAUSTED where the disk is full.
  [[nodiscard]] virtual Awaitable<absl::Status> Put(std::string key, std::string value) = 0;
  // Without waiting: what is lost by it is told or done once more.
  virtual void PutSoon(std::string key, std::string value) = 0;
  // It may turn up again after a crash.
  virtual void DeleteSoon(std::string key) = 0;
};

}  // namespace berth
