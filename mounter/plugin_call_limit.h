// How many calls run through each plugin at a time: a plugin that is asked for a thousand volumes at once
// gets them a few at a time, in the order in which they came.
//
// Owned by the Mounter; loop thread only. Outlives its passes and waiters.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/task_scope.h"

namespace berth {

class PluginCallLimit {
 private:
  struct Waiter {
    explicit Waiter(asio::any_io_executor executor) : bell(std::move(executor)) {}
    Condition bell;
    bool admitted = false;
  };
  struct Gate {
    size_t inside = 0;
    std::list<std::shared_ptr<Waiter>> waiting;
  };

 public:
  PluginCallLimit(asio::any_io_executor executor, size_t limit)
      : executor_(std::move(executor)), limit_(limit) {}

  // The right to call, given back when it goes out of scope.
  class Pass {
   public:
    explicit Pass(Gate* gate) : gate_(gate) {}
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&&) = delete;
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass();

   private:
    Gate* gate_;
  };

  // Whether Enter would have to wait now.
  [[nodiscard]] bool Full(const std::string& plugin_id) const {
    const auto gate = gates_.find(plugin_id);
    return gate != gates_.end() && gate->second.inside >= limit_;
  }

  // Waits for a place; none at `deadline`.
  [[nodiscard]] Awaitable<std::optional<Pass>> Enter(std::string plugin_id, TimePoint deadline);

 private:
  asio::any_io_executor executor_;
  size_t limit_;
  std::map<std::string, Gate> gates_;  // one per plugin that was ever called: few
};

}  // namespace berth
