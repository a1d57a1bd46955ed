// The logs that a scheduler follows over one stream.
//
// Each has one message at hand at most, and a credit that the scheduler gives: without credit its reader
// waits, and what the log drops meanwhile is counted as for any slow reader. So a scheduler that does not
// take one log holds up neither another one nor the stream.
//
// Loop thread only; lives as long as its stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "rpc/node_api.h"

namespace berth {

class LinkLogs {
 public:
  static constexpr size_t kFollowed = 16;
  static constexpr size_t kEnds = 64;

  // `ready` is called when NextToSend has something new.
  LinkLogs(asio::any_io_executor executor, NodeApi& api, std::function<void()> ready);

  // Begins or ends to follow a log. A mistake is reported in a LogEnd. To be called only while there is
  // room() for one more of these.
  void Request(const v1::LogRequest& request);
  [[nodiscard]] bool room() const { return ended_.size() < kEnds; }
  void Credit(const v1::LogCredit& credit);

  // The next message, of each log in turn, be it lines or its end.
  [[nodiscard]] std::optional<v1::LogLines> NextToSend();
  [[nodiscard]] bool anything_to_send() const;

  // Ends all of them. Before the destructor.
  [[nodiscard]] Awaitable<void> Shutdown() { return tasks_.Join(); }

 private:
  struct Followed;
  template <class Response>
  class Writer;

  static Awaitable<void> Follow(LinkLogs* self, std::shared_ptr<Followed> log);
  [[nodiscard]] Awaitable<absl::Status> Read(std::shared_ptr<Followed> log);
  void End(uint64_t number, const absl::Status& why);
  // The lowest number from these two positions on with something to report.
  using FollowedLogs = std::map<uint64_t, std::shared_ptr<Followed>>;
  using EndedLogs = std::map<uint64_t, v1::LogEnd>;
  [[nodiscard]] std::optional<uint64_t> FirstOf(FollowedLogs::const_iterator followed,
                                                EndedLogs::const_iterator ended) const;

  NodeApi& api_;
  std::function<void()> ready_;
  // No number is in both.
  FollowedLogs followed_;
  EndedLogs ended_;         // to be reported: kEnds of refusals, and those that were followed
  uint64_t last_sent_ = 0;  // the last one in turn
  Condition changed_;
  TaskScope tasks_;
};

}  // namespace berth
