#include "supervisor/plugin_report.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/printable.h"

namespace berth {
namespace {

// A name or version, as the plugin says it, in a message.
constexpr size_t kLongestName = 128;

std::string AfterColon(std::string_view text) { return text.empty() ? "" : fmt::format(": {}", text); }

}  // namespace

PluginReport::PluginReport(ReportContext& context, const std::string& id) : context_(context) {
  snapshot_.id = id;
}

void PluginReport::Publish(std::string_view reason, std::initializer_list<std::string_view> notes) {
  snapshot_.reason = reason;
  const auto add = [this](std::string_view note) {
    if (note.empty()) return;
    if (!snapshot_.reason.empty()) snapshot_.reason += "; ";
    snapshot_.reason += note;
  };
  add(refused_);
  for (const std::string_view note : notes) add(note);
  if (!removed_) context_.registry.Put(snapshot_);
}

void PluginReport::Remove() {
  removed_ = true;
  context_.registry.Remove(snapshot_.id);
}

void PluginReport::Emit(std::string_view type, std::string message) const {
  Event event;
  event.type = type;
  event.plugin_id = snapshot_.id;
  event.message = std::move(message);
  context_.events.Append(std::move(event));
}

void PluginReport::BeginInstance(uint64_t number) {
  snapshot_.instance = number;
  snapshot_.health = PluginHealth{};
  refused_.clear();
}

void PluginReport::Accept(PluginFacts facts, std::string computed_class) {
  snapshot_.facts = std::move(facts);
  snapshot_.computed_class = std::move(computed_class);
  snapshot_.facts_read_at = WallClock::now();
  refused_.clear();
  if (std::exchange(snapshot_.registered, true)) return;
  Emit("plugin.joined", fmt::format("is {} {}", Printable(snapshot_.facts->name, kLongestName),
                                    Printable(snapshot_.facts->vendor_version, kLongestName)));
}

void PluginReport::Refuse(std::string why) {
  if (why != refused_) Emit("plugin.refused", why);
  Leave("refused: " + why);
  refused_ = std::move(why);
}

void PluginReport::Leave(std::string why) {
  if (std::exchange(snapshot_.registered, false)) Emit("plugin.left", std::move(why));
}

std::vector<std::string> PluginReport::Holders() const {
  return context_.held_by ? context_.held_by(snapshot_.id) : std::vector<std::string>();
}

absl::Status PluginReport::NotServing(std::string_view how) const {
  return absl::FailedPreconditionError(
      fmt::format("plugin {} {}{}", snapshot_.id, how, AfterColon(snapshot_.reason)));
}

absl::Status PluginReport::NotRegisteredInTime() const {
  return absl::DeadlineExceededError(fmt::format("plugin {} is not registered in time; it is {}{}",
                                                 snapshot_.id, PluginStateName(snapshot_.state),
                                                 AfterColon(snapshot_.reason)));
}

}  // namespace berth
