#include "scheduler/drive/volume_actor.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <string_view>

#include "base/backoff.h"
#include "base/run_to_end.h"
#include "base/status.h"
#include "scheduler/decide/admit.h"
#include "scheduler/decide/claim_request.h"
#include "scheduler/drive/claim_view.h"
#include "scheduler/records/codec.h"
#include "scheduler/records/keys.h"

namespace berth::scheduler {
namespace {

constexpr Duration kPauseOfStore = std::chrono::seconds(1);
// A node that has said something of the volume is asked again after this, whatever the pause was.
constexpr Duration kPauseAfterState = std::chrono::seconds(1);

// One at a time decides and writes. Given back when it goes.
class Turn {
 public:
  Turn(bool& busy, Condition& changed) : busy_(&busy), changed_(&changed) { busy = true; }
  ~Turn() {
    *busy_ = false;
    changed_->NotifyAll();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  bool* busy_;
  Condition* changed_;
};

std::string ShownNode(const std::string& node) { return Printable(node, 192); }

}  // namespace

absl::Status StoreFailed(const absl::Status& status) {
  return absl::AbortedError(
      fmt::format("the scheduler's records cannot be written: try again: {}", MessageOf(status)));
}

VolumeActor::VolumeActor(DriveParts parts, std::function<void(VolumeActor&)> changed)
    : parts_(parts), changed_claims_(std::move(changed)), changed_(parts.links.executor()) {}

absl::Status VolumeActor::Take(const std::vector<StoredRecord>& records) {
  std::map<Use, Entry> before;
  before.swap(claims_);
  volume_modified_ = head_modified_ = 0;
  for (const StoredRecord& stored : records) {
    const std::string_view key = stored.key;
    if (key.starts_with(kVolumesPrefix)) {
      BERTH_ASSIGN_OR_RETURN(volume_, Decode<pb::VolumeRecord>(key, stored.value));
      volume_modified_ = stored.modified;
    } else if (key.starts_with(kHeadsPrefix)) {
      BERTH_ASSIGN_OR_RETURN(head_, Decode<pb::HeadRecord>(key, stored.value));
      head_modified_ = stored.modified;
    } else {
      Entry entry{.key = stored.key, .modified = stored.modified};
      BERTH_ASSIGN_OR_RETURN(entry.state.record, Decode<pb::ClaimRecord>(key, stored.value));
      const v1::PublishVolumeRequest& request = entry.state.record.request();
      const Use use(request.consumer(), request.name());
      if (const auto known = before.find(use); known != before.end()) entry.ended = known->second.ended;
      claims_[use] = std::move(entry);
    }
  }
  gone_ = volume_modified_ == 0;
  if (!gone_ && head_modified_ == 0) {
    const v1::VolumeSpec& spec = volume_.spec();
    return absl::DataLossError(
        fmt::format("the volume {} has no head", ShownVolume(spec.namespace_(), spec.id())));
  }
  if (gone_ && !claims_.empty()) return absl::DataLossError("claims without a volume");
  known_ = true;
  for (const auto& [use, entry] : before) {
    const pb::ClaimRecord& record = entry.state.record;
    const auto now = claims_.find(use);
    const uint64_t id = now == claims_.end() ? 0 : now->second.state.record.operation().id();
    if (record.has_operation() && record.operation().id() != id)
      parts_.links.Close(record.node(), record.operation().id());
  }
  for (const auto& [use, entry] : claims_) {
    if (entry.state.record.has_operation()) Send(use);
  }
  return absl::OkStatus();
}

void VolumeActor::Wake() {
  awake_ = true;
  changed_.NotifyAll();
  if (working_ || gone_) return;
  working_ = true;
  parts_.tasks.Spawn("volume", Work());
}

void VolumeActor::Said() {
  for (auto& [use, entry] : claims_) {
    if (entry.state.record.phase() == pb::ClaimRecord::LEAVING)
      entry.state.not_before = std::min(entry.state.not_before, Clock::now() + kPauseAfterState);
  }
  Wake();
}

// Ends when nothing is left to do before something changes.
Awaitable<void> VolumeActor::Work() {
  const auto self = shared_from_this();
  // Not within the call that woke it.
  co_await asio::post(parts_.links.executor(), asio::use_awaitable);
  while (true) {
    awake_ = false;
    {
      co_await changed_.WaitUntil([this] { return !busy_; }, TimePoint::max());
      const Turn turn(busy_, changed_);
      if (!known_ && Clock::now() >= not_before_) std::ignore = co_await Reload();
      std::vector<Use> uses;
      for (const auto& [use, entry] : claims_) uses.push_back(use);
      for (const Use& use : uses) {
        while (known_ && co_await Advance(use)) {
        }
      }
    }
    const TimePoint next = NextTime();
    if (!awake_ && next == TimePoint::max()) break;
    co_await changed_.WaitUntil([this] { return awake_; }, next);
  }
  working_ = false;
}

TimePoint VolumeActor::NextTime() const {
  if (!known_) return not_before_;
  TimePoint next = TimePoint::max();
  const TimePoint now = Clock::now();
  for (const auto& [use, entry] : claims_) {
    if (entry.state.not_before > now) next = std::min(next, entry.state.not_before);
  }
  return next;
}

// One step of one claim. True: there may be a next one at once.
Awaitable<bool> VolumeActor::Advance(Use use) {
  const auto found = claims_.find(use);
  if (found == claims_.end()) co_return false;
  Entry& entry = found->second;
  const ClaimNode node = NodeOf(entry.state.record, parts_.links);
  ClaimStep step;
  if (entry.result.has_value()) {
    step = Apply(entry.state, *entry.result, node, OthersThere(use), Clock::now(), RandomShare());
  } else if (!entry.ended.empty() && entry.state.record.phase() == pb::ClaimRecord::HELD) {
    step = Leave(entry.state, entry.ended);
  } else {
    step = Next(entry.state, node, Clock::now());
  }
  if (step.kind == ClaimStep::Kind::kNone) {
    entry.state = std::move(step.after);
    co_return false;
  }
  const absl::Status written = co_await Write(use, std::move(step));
  if (written.ok()) co_return true;
  if (const auto still = claims_.find(use); still != claims_.end())
    still->second.state.not_before = Clock::now() + kPauseOfStore;
  if (std::exchange(store_error_, MessageOf(written)) != MessageOf(written)) {
    SPDLOG_ERROR("volume {}: {}", ShownVolume(volume_.spec().namespace_(), volume_.spec().id()),
                 MessageOf(written));
  }
  co_return false;
}

Awaitable<absl::Status> VolumeActor::Write(Use use, ClaimStep step) {
  const Entry before = claims_.at(use);
  const pb::ClaimRecord& was = before.state.record;
  const std::string node = was.node();
  const bool sends = step.kind == ClaimStep::Kind::kPublish || step.kind == ClaimStep::Kind::kUnpublish;
  Transaction transaction{
      .compares = {{.key = before.key, .modified = before.modified}}, .puts = {}, .deletes = {}};
  uint64_t id = 0;
  if (sends) {
    // A publish is for the machine as it is recorded.
    const std::optional<Compare> holds = parts_.nodes.Holds(node);
    if (!holds.has_value()) co_return absl::AbortedError("its node is being recorded");
    if (step.kind == ClaimStep::Kind::kPublish) transaction.compares.push_back(*holds);
    const auto opened = co_await parts_.links.OpenOperation(node);
    if (!opened.ok()) co_return opened.status();
    id = *opened;
    step.after.record.mutable_operation()->set_id(id);
  }
  const pb::ClaimRecord& record = step.after.record;
  pb::HeadRecord head = head_;
  if (step.kind == ClaimStep::Kind::kEnd) {
    transaction.deletes.push_back(before.key);
    if (claims_.size() == 1) head.clear_capability();
  } else {
    transaction.puts.emplace_back(before.key, Encode(record));
  }
  uint64_t revision = 0;
  if (const absl::Status written = co_await Commit(std::move(transaction), std::move(head), &revision);
      !written.ok()) {
    if (id != 0) parts_.links.Close(node, id);
    co_return written;
  }
  // What was open before has its result, or is not wanted any more.
  const bool was_open = was.has_operation();
  const bool told = was.error() != record.error() && !record.error().empty();
  if (told) {
    SPDLOG_WARN("volume {} for {} on {}: {}", ShownVolume(record.namespace_(), record.volume()),
                ShownConsumer(record), ShownNode(node), record.error());
  }
  if (step.kind == ClaimStep::Kind::kEnd) {
    SPDLOG_INFO("volume {} is not claimed for {} on {} any more", ShownVolume(was.namespace_(), was.volume()),
                ShownConsumer(was), ShownNode(node));
    claims_.erase(use);
  } else {
    Entry& entry = claims_.at(use);
    entry.state = std::move(step.after);
    entry.modified = revision;
    entry.result.reset();
  }
  if (was_open) parts_.links.Close(node, was.operation().id());
  if (sends) Send(use);
  if (step.kind == ClaimStep::Kind::kEnd) changed_claims_(*this);
  changed_.NotifyAll();
  co_return absl::OkStatus();
}

Awaitable<absl::Status> VolumeActor::Commit(Transaction transaction, pb::HeadRecord head,
                                            uint64_t* revision) {
  const v1::VolumeSpec& spec = volume_.spec();
  const std::string key = HeadKey(spec.namespace_(), spec.id());
  head.set_number(head.number() + 1);
  transaction.compares.push_back(parts_.term.Holds());
  transaction.compares.push_back({.key = key, .modified = head_modified_});
  transaction.puts.emplace_back(key, Encode(head));
  const auto committed = co_await parts_.store.Commit(std::move(transaction));
  if (committed.ok()) {
    head_ = std::move(head);
    head_modified_ = *revision = *committed;
    store_error_.clear();
    co_return absl::OkStatus();
  }
  // Nothing happened.
  if (absl::IsResourceExhausted(committed.status()) || absl::IsInvalidArgument(committed.status()))
    co_return committed.status();
  known_ = false;
  not_before_ = Clock::now();
  // Work reads it again.
  Wake();
  co_return StoreFailed(committed.status());
}

Awaitable<absl::Status> VolumeActor::Reload() {
  not_before_ = Clock::now() + kPauseOfStore;
  const v1::VolumeSpec& spec = volume_.spec();
  std::vector<KeyRange> ranges{KeyRange::Key(VolumeKey(spec.namespace_(), spec.id())),
                               KeyRange::Key(HeadKey(spec.namespace_(), spec.id())),
                               KeyRange::Prefix(ClaimPrefix(spec.namespace_(), spec.id()))};
  BERTH_CO_ASSIGN_OR_RETURN(const Snapshot snapshot, co_await parts_.store.Read(std::move(ranges)));
  BERTH_CO_RETURN_IF_ERROR(Take(snapshot.records));
  changed_claims_(*this);
  changed_.NotifyAll();
  co_return absl::OkStatus();
}

void VolumeActor::Send(const Use& use) {
  const pb::ClaimRecord& record = claims_.at(use).state.record;
  const uint64_t id = record.operation().id();
  const bool cancels = record.operation().unpublish() && record.has_retired();
  parts_.links.Add(record.node(),
                   {.operation = OperationOf(record),
                    .cancel = cancels ? record.retired().id() : 0,
                    .cancel_run = record.retired().run_id(),
                    .answered = [weak = weak_from_this(), use, id](const auto& result) {
                      const auto self = weak.lock();
                      if (self == nullptr) return;
                      const auto entry = self->claims_.find(use);
                      if (entry == self->claims_.end() || entry->second.state.record.operation().id() != id)
                        return;
                      entry->second.result = result;
                      self->Wake();
                    }});
}

bool VolumeActor::OthersThere(const Use& use) const {
  const std::string& node = claims_.at(use).state.record.node();
  return std::ranges::any_of(claims_, [&](const auto& other) {
    const pb::ClaimRecord& record = other.second.state.record;
    return other.first != use && record.node() == node && record.sent();
  });
}

bool VolumeActor::TakeEnd(const std::string& node, const v1::EndedConsumer* consumer, bool at_synced) {
  bool concerns = false;
  for (auto& [use, entry] : claims_) {
    const pb::ClaimRecord& record = entry.state.record;
    if (record.node() != node) continue;
    if (consumer != nullptr &&
        (consumer->namespace_() != record.namespace_() || consumer->consumer() != use.first))
      continue;
    const EndOf end = IsEndOf(entry.state, NodeOf(record, parts_.links), consumer, at_synced, Clock::now());
    if (end == EndOf::kAnother) continue;
    concerns = true;
    if (end != EndOf::kThis || record.phase() != pb::ClaimRecord::HELD || !entry.ended.empty()) continue;
    entry.ended = consumer == nullptr
                      ? "its node has released the volume, since its lease had expired"
                      : fmt::format("its consumer has ended: {}", Printable(consumer->cause(), 256));
    Wake();
  }
  return concerns;
}

bool VolumeActor::TakeShown(const std::string& node, const v1::Volume& shown) {
  const v1::VolumeSpec& spec = volume_.spec();
  std::map<Use, TimePoint> before = std::exchange(found_[node], {});
  const TimePoint now = Clock::now();
  for (const v1::Publication& publication : shown.publications()) {
    const std::optional<std::string> consumer = OurConsumer(spec, publication);
    if (!consumer.has_value()) continue;
    const Use use(*consumer, publication.name());
    // One with this name elsewhere has to end first.
    if (claims_.contains(use)) continue;
    const TimePoint since = before.contains(use) ? before[use] : now;
    if (now - since < parts_.found_after) {
      found_[node][use] = since;
      continue;
    }
    pb::ClaimRecord claim = FoundClaim(spec, node, shown, publication);
    parts_.tasks.Spawn("found", WriteFound(std::move(claim)));
  }
  if (!found_[node].empty()) return true;
  found_.erase(node);
  return false;
}

Awaitable<void> VolumeActor::WriteFound(pb::ClaimRecord claim) {
  const auto self = shared_from_this();
  co_await asio::post(parts_.links.executor(), asio::use_awaitable);
  co_await changed_.WaitUntil([this] { return !busy_; }, TimePoint::max());
  const Turn turn(busy_, changed_);
  const Use use(claim.request().consumer(), claim.request().name());
  const MachineNow now = parts_.links.Now(claim.node());
  if (!known_ || gone_ || claims_.contains(use) || now.record == nullptr) co_return;
  claim.set_instance_id(now.record->instance_id);
  const v1::VolumeSpec& spec = volume_.spec();
  Entry entry{.state = {.record = claim},
              .key = ClaimKey(spec.namespace_(), spec.id(), use.first, use.second)};
  pb::HeadRecord head = head_;
  if (!head.has_capability()) *head.mutable_capability() = claim.request().capability();
  const absl::Status written =
      co_await Commit({.compares = {{.key = entry.key}}, .puts = {{entry.key, Encode(claim)}}, .deletes = {}},
                      std::move(head), &entry.modified);
  // It is looked at again.
  if (!written.ok()) co_return;
  SPDLOG_WARN("volume {} for {} was found on {} without a claim: it is being released",
              ShownVolume(spec.namespace_(), spec.id()), ShownConsumer(claim), ShownNode(claim.node()));
  claims_[use] = std::move(entry);
  changed_claims_(*this);
  Wake();
}

// --- What callers ask --------------------------------------------------------------------------------------

Awaitable<absl::Status> VolumeActor::TakeClaim(pb::ClaimRecord claim) {
  const auto self = shared_from_this();
  co_await changed_.WaitUntil([this] { return !busy_; }, TimePoint::max());
  const Turn turn(busy_, changed_);
  if (!known_) co_return StoreFailed(absl::AbortedError("its records are read again"));
  const v1::VolumeSpec& spec = volume_.spec();
  if (gone_)
    co_return absl::NotFoundError(
        fmt::format("no volume {} is registered", ShownVolume(spec.namespace_(), spec.id())));
  const Use use(claim.request().consumer(), claim.request().name());
  if (const auto there = claims_.find(use); there != claims_.end())
    co_return Joins(claim, there->second.state.record);
  if (claims_.size() >= kMostClaims)
    co_return absl::ResourceExhaustedError(fmt::format("the volume has {} claims already", claims_.size()));
  BERTH_CO_RETURN_IF_ERROR(PlaceOnNode(claim, parts_.links.Now(claim.node())));
  const AdmitRequest asked{.volume = spec.namespace_() + "/" + spec.id(),
                           .node = claim.node(),
                           .capability = claim.request().capability(),
                           .readonly = claim.request().readonly()};
  std::vector<ClaimFacts> facts;
  for (const auto& [other, entry] : claims_) {
    facts.push_back(FactsOf(entry.state.record));
    facts.back().error = ErrorOf(entry.state.record, parts_.links);
  }
  const v1::Capability fixed = head_.capability();
  if (absl::Status refused = Admit(asked, head_.has_capability() ? &fixed : nullptr, facts); !refused.ok()) {
    // Once, however often it is asked.
    if (std::exchange(refusal_, MessageOf(refused)) != MessageOf(refused))
      SPDLOG_INFO("refused to {} on {}: {}", ShownConsumer(claim), ShownNode(claim.node()),
                  MessageOf(refused));
    co_return refused;
  }
  const std::optional<Compare> holds = parts_.nodes.Holds(claim.node());
  if (!holds.has_value()) co_return absl::AbortedError("its node is being recorded: try again");

  Entry entry{.state = {.record = claim},
              .key = ClaimKey(spec.namespace_(), spec.id(), use.first, use.second)};
  pb::HeadRecord head = head_;
  *head.mutable_capability() = claim.request().capability();
  const Compare volume{.key = VolumeKey(spec.namespace_(), spec.id()), .modified = volume_modified_};
  BERTH_CO_RETURN_IF_ERROR(co_await Commit({.compares = {{.key = entry.key}, *holds, volume},
                                            .puts = {{entry.key, Encode(claim)}},
                                            .deletes = {},
                                            .is_new_work = true},
                                           std::move(head), &entry.modified));
  SPDLOG_INFO("volume {} is claimed for {} on {}", ShownVolume(spec.namespace_(), spec.id()),
              ShownConsumer(claim), ShownNode(claim.node()));
  claims_[use] = std::move(entry);
  changed_claims_(*this);
  Wake();
  co_return absl::OkStatus();
}

Awaitable<absl::StatusOr<v1::ClusterClaim>> VolumeActor::Claim(v1::ClaimClusterVolumeRequest request,
                                                               TimePoint deadline) {
  const auto self = shared_from_this();
  const std::string what =
      fmt::format("volume {}", ShownVolume(volume_.spec().namespace_(), volume_.spec().id()));
  if (volume_.needs_attach()) {
    co_return absl::UnimplementedError(
        fmt::format("{}: a controller of {} has to attach it, which this berth-scheduler does not do yet",
                    what, Printable(volume_.spec().driver(), 128)));
  }
  BERTH_CO_ASSIGN_OR_RETURN(pb::ClaimRecord claim, ClaimOf(request, volume_.spec()));
  BERTH_CO_RETURN_IF_ERROR(co_await RunToEnd(parts_.tasks, "claim", TakeClaim(std::move(claim)), deadline));
  const Use use(request.consumer(), request.name());
  const auto find = [this, &use]() -> const Entry* {
    const auto found = claims_.find(use);
    return found == claims_.end() ? nullptr : &found->second;
  };
  const auto is_decided = [&find] {
    const Entry* const entry = find();
    return entry == nullptr || entry->state.record.has_mount() ||
           entry->state.record.phase() == pb::ClaimRecord::LEAVING;
  };
  const bool in_time = co_await changed_.WaitUntil(is_decided, deadline);
  const Entry* const entry = find();
  if (entry == nullptr)
    co_return absl::AbortedError(fmt::format("{}: the claim was released meanwhile", what));
  const pb::ClaimRecord& record = entry->state.record;
  if (record.phase() == pb::ClaimRecord::LEAVING) {
    const auto code = static_cast<absl::StatusCode>(record.code());
    if (record.was_mounted() || code == absl::StatusCode::kOk)
      co_return absl::AbortedError(fmt::format("{}: the claim is being released: {}", what, record.cause()));
    // UNAVAILABLE is said of the scheduler alone.
    co_return absl::Status(
        code == absl::StatusCode::kUnavailable ? absl::StatusCode::kAborted : code,
        fmt::format("{} could not be published on {}: {}", what, ShownNode(record.node()), record.error()));
  }
  if (!in_time) {
    co_return absl::DeadlineExceededError(fmt::format("{}: the claim is kept, and is not mounted yet: {}",
                                                      what, WaitsFor(entry->state.record, parts_.links)));
  }
  co_return ToProto(entry->state, parts_.links);
}

Awaitable<absl::StatusOr<bool>> VolumeActor::BeginRelease(Use use) {
  const auto self = shared_from_this();
  co_await changed_.WaitUntil([this] { return !busy_; }, TimePoint::max());
  const Turn turn(busy_, changed_);
  if (!known_) co_return StoreFailed(absl::AbortedError("its records are read again"));
  const auto found = claims_.find(use);
  if (found == claims_.end()) co_return false;
  if (found->second.state.record.phase() == pb::ClaimRecord::HELD)
    BERTH_CO_RETURN_IF_ERROR(co_await Write(use, Leave(found->second.state, "it was released")));
  Wake();
  co_return true;
}

Awaitable<absl::StatusOr<bool>> VolumeActor::Release(std::string consumer, std::string name,
                                                     TimePoint deadline) {
  const auto self = shared_from_this();
  const Use use(std::move(consumer), std::move(name));
  BERTH_CO_ASSIGN_OR_RETURN(const bool was_there,
                            co_await RunToEnd(parts_.tasks, "release", BeginRelease(use), deadline));
  const auto is_gone = [this, &use] {
    const auto found = claims_.find(use);
    // One that is held was made after it.
    return found == claims_.end() || found->second.state.record.phase() == pb::ClaimRecord::HELD;
  };
  if (co_await changed_.WaitUntil(is_gone, deadline)) co_return was_there;
  co_return absl::DeadlineExceededError(
      fmt::format("volume {}: it is being released, and not free yet: {}",
                  ShownVolume(volume_.spec().namespace_(), volume_.spec().id()),
                  WaitsFor(claims_.at(use).state.record, parts_.links)));
}

Awaitable<absl::Status> VolumeActor::Delete() {
  const auto self = shared_from_this();
  co_await changed_.WaitUntil([this] { return !busy_; }, TimePoint::max());
  const Turn turn(busy_, changed_);
  if (!known_) co_return StoreFailed(absl::AbortedError("its records are read again"));
  if (gone_) co_return absl::OkStatus();
  const v1::VolumeSpec& spec = volume_.spec();
  if (!claims_.empty()) {
    const Entry& first = claims_.begin()->second;
    const pb::ClaimRecord& record = first.state.record;
    co_return absl::FailedPreconditionError(fmt::format(
        "volume {} is claimed by {} on {}{}{}: release it first", ShownVolume(spec.namespace_(), spec.id()),
        ShownConsumer(record), ShownNode(record.node()),
        record.phase() == pb::ClaimRecord::LEAVING
            ? ", and is being released: " + WaitsFor(first.state.record, parts_.links)
            : "",
        claims_.size() == 1 ? "" : fmt::format(", and by {} more", claims_.size() - 1)));
  }
  const std::string key = VolumeKey(spec.namespace_(), spec.id());
  const std::string head_key = HeadKey(spec.namespace_(), spec.id());
  const auto committed = co_await parts_.store.Commit(
      {.compares = {parts_.term.Holds(),
                    {.key = key, .modified = volume_modified_},
                    {.key = head_key, .modified = head_modified_}},
       .puts = {},
       .deletes = {key, head_key, ExternalKey(spec.driver(), spec.external_id())}});
  gone_ = committed.ok();
  if (gone_) {
    SPDLOG_INFO("volume {} is registered no more", ShownVolume(spec.namespace_(), spec.id()));
    changed_claims_(*this);
    co_return absl::OkStatus();
  }
  known_ = false;
  not_before_ = Clock::now();
  Wake();
  co_return StoreFailed(committed.status());
}

Awaitable<absl::Status> VolumeActor::Deregister(TimePoint deadline) {
  const auto self = shared_from_this();
  co_return co_await RunToEnd(parts_.tasks, "deregister", Delete(), deadline);
}

std::vector<v1::ClusterClaim> VolumeActor::ListClaims() const {
  std::vector<v1::ClusterClaim> claims;
  for (const auto& [use, entry] : claims_) claims.push_back(ToProto(entry.state, parts_.links));
  return claims;
}

std::vector<VolumeActor::Place> VolumeActor::Places() const {
  std::vector<Place> places;
  for (const auto& [use, entry] : claims_) {
    const pb::ClaimRecord& record = entry.state.record;
    places.push_back(
        {.node = record.node(), .key = {record.request().plugin_id(), record.request().volume_id()}});
  }
  return places;
}

}  // namespace berth::scheduler
