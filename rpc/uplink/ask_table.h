// What this node asks the scheduler for (scheduler.proto, Ask), until it is answered or withdrawn: claims of
// local workloads, tokens for plugins.
//
//   Add ──▶ open ── Answer ──▶ answered, and taken by all waiters
//             │ the last waiter leaves
//             ▼
//          withdrawn, which is reported to the scheduler if it was asked on this stream
//
// Equal asks are one, with any number of waiters. Pure; loop thread only.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "berth/v1/scheduler.pb.h"

namespace berth {

class AskTable {
 public:
  static constexpr size_t kOpen = 256;

  // The number of the first ask. One that no other run of berthd begins with: an answer that comes late, from
  // one run to the next, must not answer something else.
  explicit AskTable(uint64_t first) : next_(first) {}

  // The number of the ask, new or an equal one's that is open. The caller must call Leave once. `ask` has no
  // number yet. RESOURCE_EXHAUSTED: kOpen are open.
  [[nodiscard]] absl::StatusOr<uint64_t> Add(v1::Ask ask);
  // One who waited does not any more.
  void Leave(uint64_t number);

  // False: it has no waiter.
  bool Answer(v1::Answer answer);
  // What an open ask waits for; unset if it is not open.
  void SetProgress(uint64_t number, std::string text);
  // Empty: not known.
  [[nodiscard]] std::string ProgressOf(uint64_t number) const;
  // Null: not answered yet. Good until Leave.
  [[nodiscard]] const v1::Answer* AnswerOf(uint64_t number) const;

  void BeginStream();
  // The next one to send, which counts as sent from now on.
  [[nodiscard]] std::optional<std::variant<v1::Ask, v1::AskWithdrawn>> NextToSend();
  [[nodiscard]] bool anything_to_send() const { return !to_ask_.empty() || !to_withdraw_.empty(); }

  [[nodiscard]] size_t open() const { return asks_.size(); }

 private:
  struct Entry {
    v1::Ask ask;
    std::string text;  // serialized without its number: what makes two equal
    size_t waiting = 0;
    std::string progress;  // said on this stream
    std::optional<v1::Answer> answer;
  };

  std::map<uint64_t, Entry> asks_;
  std::map<std::string, uint64_t> open_;  // by their texts: those that are not answered
  std::set<uint64_t> to_ask_;
  std::set<uint64_t> to_withdraw_;
  uint64_t next_;
};

}  // namespace berth
