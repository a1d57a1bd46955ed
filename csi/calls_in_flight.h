// The calls of one client that change something at the plugin and have not ended: what stands in the way of
// ending its process.
//
// Loop thread. Shared by the client and its calls, whichever lives longest.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"

namespace berth {

class CallsInFlight {
 public:
  // `on_idle` is posted to the loop after the last call has ended; it is not called once this is gone.
  explicit CallsInFlight(std::function<void()> on_idle) : on_idle_(std::move(on_idle)) {}

  // Counts as long as it lives; its end is the call's, cancelled or not.
  class Call {
   public:
    // Null: not counted. `name` lives for ever.
    Call(std::shared_ptr<CallsInFlight> calls, asio::any_io_executor executor, const char* name,
         TimePoint deadline);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    friend class CallsInFlight;
    std::shared_ptr<CallsInFlight> calls_;
    asio::any_io_executor executor_;
    const char* name_;
    TimePoint deadline_;
    std::list<Call*>::iterator place_;
  };

  // The latest deadline of those in flight; none: there are none.
  [[nodiscard]] std::optional<TimePoint> busy_until() const;
  // Their names, each once: "NodeStageVolume", "NodeStageVolume (3)".
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::function<void()> on_idle_;
  std::list<Call*> calls_;  // few: the mounter lets in a limited number
};

}  // namespace berth
