#include "rpc/uplink/ask_table.h"

#include <fmt/format.h>

#include <utility>

namespace berth {

absl::StatusOr<uint64_t> AskTable::Add(v1::Ask ask) {
  std::string text = ask.SerializeAsString();
  if (const auto same = open_.find(text); same != open_.end()) {
    ++asks_.at(same->second).waiting;
    return same->second;
  }
  if (open_.size() >= kOpen) {
    return absl::ResourceExhaustedError(
        fmt::format("{} claims and the like wait for the scheduler already", open_.size()));
  }
  const uint64_t number = next_++;
  ask.set_number(number);
  open_[text] = number;
  asks_[number] = {.ask = std::move(ask), .text = std::move(text), .waiting = 1};
  to_ask_.insert(number);
  return number;
}

void AskTable::Leave(uint64_t number) {
  const auto entry = asks_.find(number);
  if (entry == asks_.end() || --entry->second.waiting > 0) return;
  if (!entry->second.answer) {
    open_.erase(entry->second.text);
    // The scheduler need not hear of what it was never asked.
    if (to_ask_.erase(number) == 0) to_withdraw_.insert(number);
  }
  asks_.erase(entry);
}

bool AskTable::Answer(v1::Answer answer) {
  const auto entry = asks_.find(answer.number());
  if (entry == asks_.end() || entry->second.answer) return false;
  open_.erase(entry->second.text);
  to_ask_.erase(answer.number());
  entry->second.answer = std::move(answer);
  return true;
}

void AskTable::SetProgress(uint64_t number, std::string text) {
  const auto entry = asks_.find(number);
  if (entry != asks_.end()) entry->second.progress = std::move(text);
}

std::string AskTable::ProgressOf(uint64_t number) const {
  const auto entry = asks_.find(number);
  return entry == asks_.end() ? "" : entry->second.progress;
}

const v1::Answer* AskTable::AnswerOf(uint64_t number) const {
  const auto entry = asks_.find(number);
  return entry == asks_.end() || !entry->second.answer ? nullptr : &*entry->second.answer;
}

void AskTable::BeginStream() {
  to_withdraw_.clear();  // With the stream on which they were asked they are withdrawn.
  for (const auto& [text, number] : open_) {
    to_ask_.insert(number);
    asks_.at(number).progress.clear();
  }
}

std::optional<std::variant<v1::Ask, v1::AskWithdrawn>> AskTable::NextToSend() {
  if (!to_withdraw_.empty()) {
    v1::AskWithdrawn withdrawn;
    withdrawn.set_number(*to_withdraw_.begin());
    to_withdraw_.erase(to_withdraw_.begin());
    return withdrawn;
  }
  if (to_ask_.empty()) return std::nullopt;
  const uint64_t number = *to_ask_.begin();
  to_ask_.erase(to_ask_.begin());
  return asks_.at(number).ask;
}

}  // namespace berth
