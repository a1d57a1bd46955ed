// Where the link keeps what must outlive berthd: results, ended consumers, volumes that were given up. A row
// is a key and a few bytes. Loop thread.
#pragma once

#include <absl/status/status.h>

#include <string>

#include "base/task_scope.h"

namespace berth {

class LinkRows {
 public:
  virtual ~LinkRows() = default;
  // Returns once the row is durable. An error: it may or may not be.
  [[nodiscard]] virtual Awaitable<absl::Status> Put(std::string key, std::string value) = 0;
  // Without waiting: what is lost by it is told or done once more.
  virtual void PutSoon(std::string key, std::string value) = 0;
  virtual void DeleteSoon(std::string key) = 0;
};

}  // namespace berth
