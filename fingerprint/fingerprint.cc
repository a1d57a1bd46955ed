#include "fingerprint/fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "csi/names.h"
#include "fingerprint/probe_schedule.h"
#include "fingerprint/read_facts.h"

namespace berth {
namespace {

// A plugin that is another one at each reading must not push everything else out of the event log.
constexpr size_t kMostChangesShown = 20;

constexpr auto kLeastBetweenReadings = std::chrono::seconds(1);

constexpr auto kStorageAskedEvery = std::chrono::minutes(1);

std::string Text(const absl::Status& status) { return {status.message().data(), status.message().size()}; }

// One line for people: what this plugin turned out to be.
std::string Summary(const PluginFacts& facts) {
  std::string text = fmt::format("driver {} version {}", facts.name, Printable(facts.vendor_version, 128));
  if (!facts.node_id.empty()) text += fmt::format(", node id {}", Printable(facts.node_id));
  const auto add = [&text](std::string_view what, const std::vector<std::string>& names) {
    if (!names.empty()) text += fmt::format(", {}: {}", what, fmt::join(names, " "));
  };
  add("services", Names(facts.plugin_services, PluginServiceName));
  add("controller", Names(facts.controller_capabilities, ControllerCapabilityName));
  add("group controller", Names(facts.group_capabilities, GroupControllerCapabilityName));
  add("node", Names(facts.node_capabilities, NodeCapabilityName));
  return text;
}

}  // namespace

class Fingerprinter::Impl {
 public:
  Impl(asio::any_io_executor executor, FingerprintOptions options, std::shared_ptr<CsiClient> client,
       FingerprintSink sink, EventLog& events)
      : options_(std::move(options)),
        client_(std::move(client)),
        sink_(std::move(sink)),
        events_(events),
        schedule_(options_.interval),
        changed_(executor),
        scope_(std::move(executor), fmt::format("fingerprint {}", options_.plugin_id)) {
    scope_.Spawn("probe", Run());
  }

  Awaitable<void> Stop() { return scope_.Join(); }
  void ReadAgain() {
    again_ = true;
    changed_.NotifyAll();
  }

 private:
  Awaitable<void> Run() {
    while (true) {
      ProbeResult result = co_await Probe();
      std::optional<FactsReading> reading;
      if (result.ok && FactsDue()) {
        again_ = false;  // before: a request that comes meanwhile counts
        reading = co_await ReadFacts(client_,
                                     {.node = options_.expect_node, .controller = options_.expect_controller},
                                     options_.timeout);
        if (!reading->answered.ok()) {
          result.ok = false;
          result.answered = false;
          result.error = Text(reading->answered);
        }
      }
      well_ = result.ok;
      result.storage = storage_;
      sink_.on_probe(result);
      if (scope_.cancelled()) co_return;  // The sink may have begun to stop us.
      if (reading && reading->answered.ok()) {
        facts_read_at_ = Clock::now();
        Settle(std::move(reading->facts));
        if (scope_.cancelled()) co_return;
      }
      if (result.ok && co_await AskStorage()) {
        result.storage = storage_;
        sink_.on_probe(result);
        if (scope_.cancelled()) co_return;
      }
      TimePoint next = Clock::now() + schedule_.After(result.ok);
      if (result.ok && PeriodicReading())
        next = std::min(next, facts_read_at_ + options_.fingerprint_interval);
      const TimePoint least = facts_read_at_ + kLeastBetweenReadings;
      co_await changed_.WaitUntil([this] { return again_; }, next);
      if (again_) co_await SleepUntil(result.ok ? std::min(next, least) : next);
    }
  }

  Awaitable<ProbeResult> Probe() {
    const TimePoint start = Clock::now();
    auto answer = co_await client_->Probe({}, start + options_.timeout);
    ProbeResult result{.at = WallClock::now(), .latency = Clock::now() - start};
    if (!answer.ok()) {
      result.error = fmt::format("{}: {}", CodeName(answer.status().code()), Text(answer.status()));
    } else {
      result.answered = true;
      result.ok = !answer->has_ready() || answer->ready().value();
      if (!result.ok) result.error = "not ready";
    }
    co_return result;
  }

  // True: it says something else than before. Without an answer, what it said last counts.
  Awaitable<bool> AskStorage() {
    const bool can = options_.known && options_.known->has_node_service &&
                     options_.known->NodeCan(::csi::v1::NodeServiceCapability::RPC::GET_STORAGE_HEALTH);
    if (!can) co_return !std::exchange(storage_, {}).empty();
    const TimePoint now = Clock::now();
    if (storage_asked_at_ && now < *storage_asked_at_ + kStorageAskedEvery) co_return false;
    storage_asked_at_ = now;
    const auto health = co_await client_->NodeGetStorageHealth({}, now + options_.timeout);
    if (!health.ok()) co_return false;
    const std::vector<HealthStatus> before = std::exchange(storage_, ReadHealth(*health));
    if (SameKind(before, storage_)) co_return before != storage_;
    Append(storage_.empty() ? "plugin.storage_normal" : "plugin.storage_abnormal",
           storage_.empty() ? "nothing is wrong with its storage any more"
                            : "it says of its storage: " + Describe(storage_));
    co_return true;
  }

  [[nodiscard]] bool PeriodicReading() const { return options_.fingerprint_interval > Duration::zero(); }

  // Asked after a Probe that said ready. `well_` is still of the probe before.
  [[nodiscard]] bool FactsDue() const {
    if (!well_ || refused_ || again_) return true;
    return PeriodicReading() && Clock::now() >= facts_read_at_ + options_.fingerprint_interval;
  }

  void Settle(absl::StatusOr<CheckedFacts> checked) {
    if (!checked.ok()) {
      Refuse(checked.status());
      return;
    }
    Warn(checked->warnings);
    const PluginFacts& now = checked->facts;
    if (options_.known) {
      const absl::Status successor = CheckSuccessor(*options_.known, now, sink_.holds_volumes());
      if (!successor.ok()) {
        Refuse(successor);
        return;
      }
      ReportChanges(DiffFacts(*options_.known, now));
    } else {
      Append("plugin.fingerprinted", Summary(now));
    }
    refused_.reset();
    options_.known = now;
    sink_.on_facts(now, ComputedClass(now));
  }

  void Refuse(const absl::Status& why) {
    if (refused_ != why) Append("plugin.refused", Text(why));
    refused_ = why;
    sink_.on_facts(why, "");
  }

  void ReportChanges(const std::vector<std::string>& changes) {
    const size_t shown = std::min(changes.size(), kMostChangesShown);
    for (size_t i = 0; i < shown; ++i) Append("plugin.changed", changes[i]);
    if (shown < changes.size()) {
      Append("plugin.changed", fmt::format("and {} more differences", changes.size() - shown));
    }
  }

  void Warn(const std::vector<std::string>& warnings) {
    for (const std::string& warning : warnings) {
      if (std::find(warned_.begin(), warned_.end(), warning) == warned_.end()) {
        Append("plugin.warning", warning);
      }
    }
    warned_ = warnings;
  }

  void Append(std::string type, std::string message) {
    events_.Append({.type = std::move(type), .plugin_id = options_.plugin_id, .message = std::move(message)});
  }

  FingerprintOptions options_;  // `known` follows what is read
  std::shared_ptr<CsiClient> client_;
  FingerprintSink sink_;
  EventLog& events_;
  ProbeSchedule schedule_;
  bool well_ = false;  // the last probe was ok
  TimePoint facts_read_at_;
  std::vector<HealthStatus> storage_;  // as it said last
  std::optional<TimePoint> storage_asked_at_;
  std::optional<absl::Status> refused_;  // why the last reading was refused, if it was
  std::vector<std::string> warned_;      // at the last reading
  Condition changed_;
  bool again_ = false;
  TaskScope scope_;  // last: it uses all of the above
};

Fingerprinter::Fingerprinter(asio::any_io_executor executor, FingerprintOptions options,
                             std::shared_ptr<CsiClient> client, FingerprintSink sink, EventLog& events)
    : impl_(std::make_unique<Impl>(std::move(executor), std::move(options), std::move(client),
                                   std::move(sink), events)) {}

Fingerprinter::~Fingerprinter() = default;

void Fingerprinter::ReadAgain() { impl_->ReadAgain(); }

Awaitable<void> Fingerprinter::Stop() { return impl_->Stop(); }

}  // namespace berth
