#include "mounter/plugin_call_limit.h"

namespace berth {

PluginCallLimit::Pass::~Pass() {
  if (gate_ == nullptr) return;
  // A waiter gets the freed slot directly, so that no later caller overtakes it.
  if (gate_->waiting.empty()) {
    --gate_->inside;
    return;
  }
  const std::shared_ptr<Waiter> next = gate_->waiting.front();
  gate_->waiting.pop_front();
  next->admitted = true;
  next->bell.NotifyAll();
}

Awaitable<std::optional<PluginCallLimit::Pass>> PluginCallLimit::Enter(std::string plugin_id,
                                                                       TimePoint deadline) {
  Gate& gate = gates_[plugin_id];
  if (gate.inside < limit_) {
    ++gate.inside;
    co_return Pass(&gate);
  }
  const auto waiter = std::make_shared<Waiter>(executor_);
  gate.waiting.push_back(waiter);
  // However this ends, the place is neither kept nor lost: a waiter that was admitted while it was being
  // cancelled gives its place back.
  struct Leave {
    Gate* gate;
    std::shared_ptr<Waiter> waiter;
    bool keeps = false;
    ~Leave() {
      if (keeps) return;
      if (waiter->admitted) {
        const Pass unused(gate);
        return;
      }
      gate->waiting.remove(waiter);
    }
  } leave{&gate, waiter};
  if (!co_await waiter->bell.WaitUntil([waiter] { return waiter->admitted; }, deadline))
    co_return std::nullopt;
  leave.keeps = true;
  co_return Pass(&gate);
}

}  // namespace berth
