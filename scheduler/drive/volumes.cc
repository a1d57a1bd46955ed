#include "scheduler/drive/volumes.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "base/run_to_end.h"
#include "base/status.h"
#include "scheduler/decide/check_volume.h"
#include "scheduler/decide/claim_request.h"
#include "scheduler/drive/drivers.h"
#include "scheduler/drive/node_call.h"
#include "scheduler/records/codec.h"
#include "scheduler/records/keys.h"

namespace berth::scheduler {
namespace {

constexpr int kMostInAPage = 1000;

csi::v1::ValidateVolumeCapabilitiesRequest ValidationOf(const v1::VolumeSpec& spec, bool single_node_modes) {
  csi::v1::ValidateVolumeCapabilitiesRequest request;
  request.set_volume_id(spec.external_id());
  *request.mutable_volume_context() = spec.volume_context();
  for (const int mode : spec.access_modes()) {
    csi::v1::VolumeCapability& capability = *request.add_volume_capabilities();
    const bool is_single_node = mode == v1::SINGLE_NODE_SINGLE_WRITER || mode == v1::SINGLE_NODE_MULTI_WRITER;
    // CSI's own numbers. A plugin without these two modes knows SINGLE_NODE_WRITER in their place.
    capability.mutable_access_mode()->set_mode(static_cast<csi::v1::VolumeCapability_AccessMode_Mode>(
        is_single_node && !single_node_modes ? +v1::SINGLE_NODE_WRITER : mode));
    if (spec.access_type() == v1::BLOCK) {
      capability.mutable_block();
      continue;
    }
    capability.mutable_mount()->set_fs_type(spec.fs_type());
    *capability.mutable_mount()->mutable_mount_flags() = spec.mount_flags();
    capability.mutable_mount()->set_volume_mount_group(spec.volume_mount_group());
  }
  return request;
}

}  // namespace

Volumes::Volumes(Store& store, Term term, NodeRecords& nodes, NodeLinks& links, Duration found_after)
    : links_(links),
      tasks_(links.executor(), "volumes"),
      parts_{.tasks = tasks_,
             .store = store,
             .term = term,
             .nodes = nodes,
             .links = links,
             .found_after = found_after} {}

Volumes::~Volumes() { links_.Observe(nullptr); }

Awaitable<absl::Status> Volumes::Load() {
  std::vector<KeyRange> ranges{KeyRange::Prefix(std::string(kVolumesPrefix)),
                               KeyRange::Prefix(std::string(kHeadsPrefix)),
                               KeyRange::Prefix(std::string(kClaimsPrefix))};
  BERTH_CO_ASSIGN_OR_RETURN(Snapshot snapshot, co_await parts_.store.Read(std::move(ranges)));
  // Volume, head and claims have the same two parts after their first letter.
  std::map<std::string, std::vector<StoredRecord>> volumes;
  for (StoredRecord& stored : snapshot.records) {
    const std::string& key = stored.key;
    const size_t end = key.find('/', key.find('/', 2) + 1);
    volumes[key.substr(2, end == std::string::npos ? end : end - 2)].push_back(std::move(stored));
  }
  for (const auto& [name, records] : volumes) BERTH_CO_RETURN_IF_ERROR(Add(records));
  links_.Observe(this);
  tasks_.Spawn("look again", LookAgain());
  co_return absl::OkStatus();
}

absl::Status Volumes::Add(const std::vector<StoredRecord>& records) {
  const auto actor = std::make_shared<VolumeActor>(parts_, [this](VolumeActor& its) { ClaimsChanged(its); });
  BERTH_RETURN_IF_ERROR(actor->Take(records));
  if (actor->gone()) {
    return absl::DataLossError(
        fmt::format("the record {} is of no volume", Printable(records.front().key, 256)));
  }
  const v1::VolumeSpec& spec = actor->volume().spec();
  const Name name(spec.namespace_(), spec.id());
  externals_[{spec.driver(), spec.external_id()}] = name;
  volumes_[name] = {.actor = actor, .places = {}};
  ClaimsChanged(*actor);
  actor->Wake();
  return absl::OkStatus();
}

Awaitable<void> Volumes::Stop() {
  links_.Observe(nullptr);
  co_await tasks_.Join();
}

void Volumes::ClaimsChanged(VolumeActor& actor) {
  const v1::VolumeSpec& spec = actor.volume().spec();
  const auto found = volumes_.find({spec.namespace_(), spec.id()});
  if (found == volumes_.end() || found->second.actor.get() != &actor) return;
  std::set<std::string> nodes;
  for (const VolumeActor::Place& place : std::exchange(found->second.places, actor.Places())) {
    nodes.insert(place.node);
    auto& there = places_[place.node];
    const auto [first, last] = there.equal_range(place.key);
    const auto its =
        std::find_if(first, last, [&actor](const auto& entry) { return entry.second == &actor; });
    if (its != last) there.erase(its);
    if (there.empty()) places_.erase(place.node);
  }
  for (const VolumeActor::Place& place : found->second.places) places_[place.node].emplace(place.key, &actor);
  if (actor.gone()) {
    externals_.erase({spec.driver(), spec.external_id()});
    volumes_.erase(found);
  }
  // A notice may have waited for a claim that is gone.
  for (const std::string& node : nodes) TakeNotices(node, /*at_synced=*/false);
}

void Volumes::MachineChanged(const std::string& node, bool synced) {
  if (synced) {
    TakeNotices(node, /*at_synced=*/true);
    const MachineNow now = links_.Now(node);
    for (const auto& [key, shown] : now.facts->volumes()) TakeShown(node, key);
  }
  const auto there = places_.find(node);
  if (there == places_.end()) return;
  for (const auto& [key, actor] : there->second) actor->Wake();
}

void Volumes::StateChanged(const std::string& node, const v1::State& state) {
  const auto there = places_.find(node);
  for (const v1::Object& object : state.objects()) {
    NodeFacts::VolumeKey key;
    if (object.has_volume()) key = {object.volume().plugin_id(), object.volume().volume_id()};
    if (object.removed().has_volume())
      key = {object.removed().volume().plugin_id(), object.removed().volume().volume_id()};
    if (object.has_volume()) TakeShown(node, key);
    if (there == places_.end() || key.first.empty()) continue;
    const auto [first, last] = there->second.equal_range(key);
    for (auto its = first; its != last; ++its) its->second->Said();
  }
  TakeNotices(node, /*at_synced=*/false);
}

void Volumes::TakeNotices(const std::string& node, bool at_synced) {
  const MachineNow now = links_.Now(node);
  if (!now.synced) return;
  const auto there = places_.find(node);
  std::vector<uint64_t> ended;
  std::vector<uint64_t> released;
  for (const auto& [number, consumer] : now.facts->ended_consumers()) {
    bool concerns = false;
    if (there != places_.end()) {
      for (const auto& [key, actor] : there->second) concerns |= actor->TakeEnd(node, &consumer, at_synced);
    }
    if (!concerns) ended.push_back(number);
  }
  for (const auto& [number, release] : now.facts->forced_releases()) {
    if (release.progress() != v1::ForcedRelease::RELEASED) continue;
    bool concerns = false;
    if (there != places_.end()) {
      const auto [first, last] = there->second.equal_range({release.plugin_id(), release.volume_id()});
      for (auto its = first; its != last; ++its) concerns |= its->second->TakeEnd(node, nullptr, at_synced);
    }
    if (!concerns) released.push_back(number);
  }
  links_.AcknowledgeNotices(node, ended, released);
}

void Volumes::TakeShown(const std::string& node, const NodeFacts::VolumeKey& key) {
  const VolumeActor::Place place{.node = node, .key = key};
  to_look_at_.erase(place);
  const MachineNow now = links_.Now(node);
  if (!now.synced) return;
  const auto shown = now.facts->volumes().find(key);
  if (shown == now.facts->volumes().end()) return;
  const auto external = externals_.find({shown->second.driver_name(), shown->second.volume_id()});
  if (external == externals_.end()) return;
  if (volumes_.at(external->second).actor->TakeShown(node, shown->second)) to_look_at_.insert(place);
}

// What State did not show before, it may show now, or not any more.
Awaitable<void> Volumes::LookAgain() {
  while (true) {
    co_await SleepUntil(Clock::now() + parts_.found_after);
    std::vector<std::string> nodes;
    for (const auto& [node, there] : places_) nodes.push_back(node);
    for (const std::string& node : nodes) TakeNotices(node, /*at_synced=*/false);
    const std::set<VolumeActor::Place> places = to_look_at_;
    for (const VolumeActor::Place& place : places) TakeShown(place.node, place.key);
  }
}

absl::Status Volumes::CheckNew(const v1::VolumeSpec& spec, bool* same) const {
  const auto known = volumes_.find({spec.namespace_(), spec.id()});
  if (known != volumes_.end()) {
    const std::string fields = DifferingFields(spec, known->second.actor->volume().spec());
    *same = fields.empty();
    if (*same) return absl::OkStatus();
    return absl::AlreadyExistsError(fmt::format("volume {} is registered with another {}",
                                                ShownVolume(spec.namespace_(), spec.id()), fields));
  }
  const auto external = externals_.find({spec.driver(), spec.external_id()});
  if (external != externals_.end()) {
    return absl::AlreadyExistsError(fmt::format(
        "volume {} of the driver {} is registered as {}", Printable(spec.external_id(), 256),
        Printable(spec.driver(), 128), ShownVolume(external->second.first, external->second.second)));
  }
  if (volumes_.size() >= kMostRegistered)
    return absl::ResourceExhaustedError(fmt::format("{} volumes are registered already", volumes_.size()));
  return absl::OkStatus();
}

Awaitable<absl::StatusOr<bool>> Volumes::Validate(v1::VolumeSpec spec, TimePoint deadline) {
  BERTH_CO_ASSIGN_OR_RETURN(const DriverFacts driver, FindDriver(spec.driver(), links_.List()));
  // Only a controller can confirm a volume.
  if (!driver.controller.has_value()) co_return driver.needs_attach;
  const PluginPlace& place = *driver.controller;
  v1::Operation operation;
  operation.mutable_controller()->set_plugin_id(place.plugin_id);
  *operation.mutable_controller()->mutable_validate() = ValidationOf(spec, place.single_node_modes);
  const auto result = co_await CallNode(links_, place.node, std::move(operation), deadline);
  const std::string what = fmt::format("volume {} of the driver {}", Printable(spec.external_id(), 256),
                                       Printable(spec.driver(), 128));
  if (absl::IsNotFound(result.status()) || absl::IsInvalidArgument(result.status()))
    co_return absl::FailedPreconditionError(fmt::format("{}: {}", what, MessageOf(result.status())));
  // UNAVAILABLE is said of the scheduler alone.
  if (absl::IsUnavailable(result.status()))
    co_return absl::AbortedError(fmt::format("{}: try again: {}", what, MessageOf(result.status())));
  if (!result.ok()) co_return Annotate(result.status(), fmt::format("validate {}", what));
  const auto& answer = result->controller().validate();
  if (!answer.has_confirmed()) {
    co_return absl::FailedPreconditionError(
        fmt::format("{} cannot be used so, says its plugin on node {}: {}", what, Printable(place.node, 192),
                    answer.message().empty() ? "without a reason" : Printable(answer.message(), 512)));
  }
  co_return driver.needs_attach;
}

Awaitable<absl::Status> Volumes::WriteNew(v1::VolumeSpec spec, bool needs_attach) {
  const Name name(spec.namespace_(), spec.id());
  // Another call may have registered it meanwhile.
  bool same = false;
  BERTH_CO_RETURN_IF_ERROR(CheckNew(spec, &same));
  if (same) co_return absl::OkStatus();
  pb::VolumeRecord record;
  *record.mutable_spec() = spec;
  record.set_needs_attach(needs_attach);
  pb::HeadRecord head;
  head.set_number(1);
  pb::ExternalRecord external;
  external.set_namespace_(name.first);
  external.set_id(name.second);
  StoredRecord stored{.key = VolumeKey(name.first, name.second), .value = Encode(record)};
  StoredRecord stored_head{.key = HeadKey(name.first, name.second), .value = Encode(head)};
  const std::string external_key = ExternalKey(spec.driver(), spec.external_id());
  const auto committed = co_await parts_.store.Commit({.compares = {parts_.term.Holds(),
                                                                    {.key = stored.key},
                                                                    {.key = stored_head.key},
                                                                    {.key = external_key}},
                                                       .puts = {{stored.key, stored.value},
                                                                {stored_head.key, stored_head.value},
                                                                {external_key, Encode(external)}},
                                                       .deletes = {},
                                                       .is_new_work = true});
  if (absl::IsResourceExhausted(committed.status())) co_return committed.status();
  std::vector<StoredRecord> records;
  if (committed.ok()) {
    stored.modified = stored_head.modified = *committed;
    records = {std::move(stored), std::move(stored_head)};
  } else {
    // It may have been carried out.
    BERTH_CO_ASSIGN_OR_RETURN(
        Snapshot snapshot,
        co_await parts_.store.Read({KeyRange::Key(stored.key), KeyRange::Key(stored_head.key)}));
    records = std::move(snapshot.records);
    if (records.empty()) co_return StoreFailed(committed.status());
  }
  BERTH_CO_RETURN_IF_ERROR(Add(records));
  SPDLOG_INFO("volume {} is registered: {} of the driver {}", ShownVolume(name.first, name.second),
              Printable(spec.external_id(), 256), Printable(spec.driver(), 128));
  co_return CheckNew(spec, &same);
}

Awaitable<absl::StatusOr<v1::RegisterVolumeResponse>> Volumes::Register(v1::VolumeSpec spec,
                                                                        TimePoint deadline) {
  BERTH_CO_RETURN_IF_ERROR(CheckVolumeSpec(spec));
  spec = Completed(std::move(spec));
  bool same = false;
  BERTH_CO_RETURN_IF_ERROR(CheckNew(spec, &same));
  if (!same) {
    BERTH_CO_ASSIGN_OR_RETURN(const bool needs_attach, co_await Validate(spec, deadline));
    BERTH_CO_RETURN_IF_ERROR(co_await RunToEnd(tasks_, "register", WriteNew(spec, needs_attach), deadline));
  }
  BERTH_CO_ASSIGN_OR_RETURN(const auto actor, Find(spec.namespace_(), spec.id()));
  v1::RegisterVolumeResponse response;
  *response.mutable_volume() = ToProto(*actor);
  co_return response;
}

Awaitable<absl::StatusOr<v1::DeregisterVolumeResponse>> Volumes::Deregister(
    v1::DeregisterVolumeRequest request, TimePoint deadline) {
  v1::DeregisterVolumeResponse response;
  const auto found = volumes_.find({request.namespace_(), request.id()});
  if (found == volumes_.end()) co_return response;
  const std::shared_ptr<VolumeActor> actor = found->second.actor;
  BERTH_CO_RETURN_IF_ERROR(co_await actor->Deregister(deadline));
  response.set_was_registered(true);
  co_return response;
}

absl::StatusOr<std::shared_ptr<VolumeActor>> Volumes::Find(const std::string& name_space,
                                                           const std::string& id) const {
  const auto found = volumes_.find({name_space, id});
  if (found != volumes_.end()) return found->second.actor;
  return absl::NotFoundError(fmt::format("no volume {} is registered", ShownVolume(name_space, id)));
}

Awaitable<absl::StatusOr<v1::ClaimClusterVolumeResponse>> Volumes::Claim(
    v1::ClaimClusterVolumeRequest request, TimePoint deadline) {
  BERTH_CO_RETURN_IF_ERROR(CheckClaim(request));
  BERTH_CO_ASSIGN_OR_RETURN(const auto actor, Find(request.namespace_(), request.volume()));
  v1::ClaimClusterVolumeResponse response;
  BERTH_CO_ASSIGN_OR_RETURN(*response.mutable_claim(), co_await actor->Claim(std::move(request), deadline));
  co_return response;
}

Awaitable<absl::StatusOr<v1::ReleaseClusterClaimResponse>> Volumes::Release(
    v1::ReleaseClusterClaimRequest request, TimePoint deadline) {
  v1::ReleaseClusterClaimResponse response;
  const auto found = volumes_.find({request.namespace_(), request.volume()});
  if (found == volumes_.end()) co_return response;
  const std::shared_ptr<VolumeActor> actor = found->second.actor;
  BERTH_CO_ASSIGN_OR_RETURN(const bool was_claimed,
                            co_await actor->Release(request.consumer(), request.name(), deadline));
  response.set_was_claimed(was_claimed);
  co_return response;
}

Awaitable<absl::StatusOr<v1::ForgetNodeResponse>> Volumes::ForgetNode(std::string name, TimePoint deadline) {
  // A claim needs a node that is connected, and that is not forgotten: so none is made meanwhile.
  if (const auto there = places_.find(name); there != places_.end()) {
    const v1::VolumeSpec& spec = there->second.begin()->second->volume().spec();
    co_return absl::FailedPreconditionError(
        fmt::format("node {} has {} claim{}, of volume {} for example: release them first",
                    Printable(name, 192), there->second.size(), there->second.size() == 1 ? "" : "s",
                    ShownVolume(spec.namespace_(), spec.id())));
  }
  v1::ForgetNodeResponse response;
  BERTH_CO_ASSIGN_OR_RETURN(const bool was_known,
                            co_await RunToEnd(tasks_, "forget", links_.Forget(name), deadline));
  response.set_was_known(was_known);
  co_return response;
}

v1::ClusterVolume Volumes::ToProto(const VolumeActor& actor) {
  v1::ClusterVolume proto;
  *proto.mutable_spec() = actor.volume().spec();
  proto.set_needs_attach(actor.volume().needs_attach());
  proto.set_claims(static_cast<int32_t>(actor.claims()));
  return proto;
}

namespace {

// Where a page begins and how much it has.
struct Page {
  size_t limit = 0;
  std::pair<std::string, std::string> after;  // namespace, id
};

template <class Request>
absl::StatusOr<Page> PageOf(const Request& request) {
  if (request.page_size() < 0 || request.page_size() > kMostInAPage)
    return absl::InvalidArgumentError(
        fmt::format("page_size: {} must be 0 to {}", request.page_size(), kMostInAPage));
  const std::string& token = request.page_token();
  const size_t slash = token.find('/');
  if (!token.empty() && slash == std::string::npos)
    return absl::InvalidArgumentError("page_token: was not given by this scheduler");
  Page page{.limit = static_cast<size_t>(request.page_size() == 0 ? kMostInAPage : request.page_size())};
  if (!token.empty()) page.after = {token.substr(0, slash), token.substr(slash + 1)};
  return page;
}

std::string TokenOf(const v1::VolumeSpec& spec) { return spec.namespace_() + "/" + spec.id(); }

}  // namespace

absl::StatusOr<v1::ListClusterVolumesResponse> Volumes::List(
    const v1::ListClusterVolumesRequest& request) const {
  BERTH_ASSIGN_OR_RETURN(const Page page, PageOf(request));
  v1::ListClusterVolumesResponse response;
  for (auto volume = volumes_.upper_bound(page.after); volume != volumes_.end(); ++volume) {
    const VolumeActor& actor = *volume->second.actor;
    const v1::VolumeSpec& spec = actor.volume().spec();
    if (!request.namespace_().empty() && spec.namespace_() != request.namespace_()) continue;
    if (!request.driver().empty() && spec.driver() != request.driver()) continue;
    if (static_cast<size_t>(response.volumes_size()) >= page.limit) {
      response.set_next_page_token(TokenOf(response.volumes(response.volumes_size() - 1).spec()));
      break;
    }
    *response.add_volumes() = ToProto(actor);
  }
  return response;
}

absl::StatusOr<v1::GetClusterVolumeResponse> Volumes::Get(const v1::GetClusterVolumeRequest& request) const {
  BERTH_ASSIGN_OR_RETURN(const auto actor, Find(request.namespace_(), request.id()));
  v1::GetClusterVolumeResponse response;
  *response.mutable_volume() = ToProto(*actor);
  for (v1::ClusterClaim& claim : actor->ListClaims()) *response.add_claims() = std::move(claim);
  return response;
}

absl::StatusOr<v1::ListClusterClaimsResponse> Volumes::ListClaims(
    const v1::ListClusterClaimsRequest& request) const {
  BERTH_ASSIGN_OR_RETURN(const Page page, PageOf(request));
  const auto is_asked_for = [&request](const v1::ClusterClaim& claim) {
    return (request.consumer().empty() || claim.consumer() == request.consumer()) &&
           (request.node().empty() || claim.node() == request.node());
  };
  v1::ListClusterClaimsResponse response;
  std::string last;
  for (auto volume = volumes_.upper_bound(page.after); volume != volumes_.end(); ++volume) {
    const VolumeActor& actor = *volume->second.actor;
    const v1::VolumeSpec& spec = actor.volume().spec();
    if (!request.namespace_().empty() && spec.namespace_() != request.namespace_()) continue;
    if (!request.volume().empty() && spec.id() != request.volume()) continue;
    if (static_cast<size_t>(response.claims_size()) >= page.limit) {
      response.set_next_page_token(last);
      break;
    }
    for (v1::ClusterClaim& claim : actor.ListClaims()) {
      if (is_asked_for(claim)) *response.add_claims() = std::move(claim);
    }
    last = TokenOf(spec);
  }
  return response;
}

}  // namespace berth::scheduler
