#include "rpc/volume_list_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/printable.h"
#include "base/status.h"
#include "controller/plugin_choice.h"
#include "request/request_check.h"
#include "rpc/convert_volume.h"
#include "rpc/page_token.h"

namespace berth {
namespace {

constexpr size_t kPage = 1000;
// Of the volumes of one page, so that it fits into the 4 MiB of a message that clients take.
constexpr size_t kPageBytes = size_t{2} << 20;

VolumeName NameOf(const VolumeView& volume) { return {volume.plugin_id, volume.volume_id}; }

bool DeclaredFor(const std::vector<DeclaredView>& files, const std::string& consumer) {
  return std::any_of(files.begin(), files.end(),
                     [&](const DeclaredView& file) { return file.request.consumer() == consumer; });
}

// How long before its deadline a call that waits is answered, and how long it waits at most.
constexpr Duration kAnswerBefore = std::chrono::seconds(1);
constexpr Duration kWaitAtMost = std::chrono::minutes(1);
constexpr size_t kDeclaredBytes = size_t{3} << 20;

v1::ListDeclaredVolumesResponse DeclaredOf(const std::vector<DeclaredView>& files,
                                           const v1::ListDeclaredVolumesRequest& request) {
  v1::ListDeclaredVolumesResponse answer;
  std::set<std::string> known;
  for (const DeclaredView& file : files) {
    const std::string name = DeclaredName(file);
    const auto& names = request.names();
    const auto is_meant = [&](const std::string& each) {
      return each == name || each == file.request.volume_id();
    };
    if (!names.empty() && std::none_of(names.begin(), names.end(), is_meant)) continue;
    known.insert(name);
    known.insert(file.request.volume_id());
    *answer.add_volumes() = ToProto(file);
  }
  for (const std::string& name : request.names()) {
    if (!known.contains(name)) answer.add_not_declared(name);
  }
  return answer;
}

bool IsSettled(const v1::ListDeclaredVolumesResponse& answer) {
  return std::none_of(answer.volumes().begin(), answer.volumes().end(), [](const v1::DeclaredVolume& volume) {
    return volume.state() == v1::DECLARED_PENDING;
  });
}

absl::Status NotHeld(const std::string& plugin_id, const std::string& volume_id) {
  return absl::NotFoundError(fmt::format("this node has no volume {} of plugin {}", PrintableName(volume_id),
                                         PrintableName(plugin_id)));
}

}  // namespace

ApiAnswer<v1::ListVolumesResponse> VolumeListApi::ListVolumes(v1::ListVolumesRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckList(request));
  std::string plugin_id;
  if (!request.plugin_id().empty()) {
    BERTH_CO_ASSIGN_OR_RETURN(plugin_id, lookup_.NodePlugin(request.plugin_id()));
  }
  VolumeName after;
  if (!request.page_token().empty()) {
    BERTH_CO_ASSIGN_OR_RETURN(after, ReadPageToken(request.page_token()));
  }
  const std::string& consumer = request.consumer();
  const size_t page = request.page_size() > 0 ? std::min(kPage, size_t(request.page_size())) : kPage;

  // One more than the page has room for: whether there is another page.
  const std::vector<VolumeView> held = mounter_.List({.plugin_id = plugin_id,
                                                      .consumer = consumer,
                                                      .label_prefix = request.label(),
                                                      .after = {after.first, after.second},
                                                      .limit = page + 1});
  // Null: it is only declared.
  std::map<VolumeName, const VolumeView*> volumes;
  for (const VolumeView& volume : held) volumes.emplace(NameOf(volume), &volume);
  const VolumeLookup::DeclaredByVolume declared = lookup_.Declared();
  for (auto file = declared.upper_bound(after); file != declared.end(); ++file) {
    const auto& [name, files] = *file;
    if (held.size() > page && name > NameOf(held.back())) break;
    if (!plugin_id.empty() && name.first != plugin_id) continue;
    if (!request.label().empty() || (!consumer.empty() && !DeclaredFor(files, consumer))) continue;
    if (!mounter_.Find(name.first, name.second)) volumes.emplace(name, nullptr);
  }

  v1::ListVolumesResponse answer;
  size_t bytes = 0;
  const VolumeName* last = nullptr;
  for (const auto& [name, volume] : volumes) {
    const auto files = declared.find(name);
    v1::Volume shown = volume != nullptr
                           ? ToProto(*volume, call.may_change)
                           : DeclaredVolume(name.first, name.second, files->second, call.may_change);
    if (volume != nullptr && files != declared.end()) AddDeclared(files->second, &shown);
    bytes += shown.ByteSizeLong();
    const auto count = static_cast<size_t>(answer.volumes_size());
    if (last != nullptr && (count == page || bytes > kPageBytes)) {
      answer.set_next_page_token(PageTokenAfter(*last));
      break;
    }
    last = &name;
    *answer.add_volumes() = std::move(shown);
  }
  co_return answer;
}

ApiAnswer<v1::ListDeclaredVolumesResponse> VolumeListApi::ListDeclaredVolumes(
    v1::ListDeclaredVolumesRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckDeclaredList(request));
  const TimePoint until = std::min(call.deadline - kAnswerBefore, Clock::now() + kWaitAtMost);
  v1::ListDeclaredVolumesResponse answer;
  while (true) {
    const uint64_t seen = declared_.version();
    answer = DeclaredOf(declared_.List(), request);
    if (!request.wait() || IsSettled(answer) || Clock::now() >= until) break;
    co_await declared_.WaitChange(seen, until);
  }
  if (answer.ByteSizeLong() > kDeclaredBytes) {
    co_return absl::ResourceExhaustedError(
        "too many declared volumes for one answer: name those that are meant");
  }
  co_return answer;
}

ApiAnswer<v1::Volume> VolumeListApi::GetVolume(v1::GetVolumeRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckVolumeName(request.plugin_id(), request.volume_id()));
  const auto resolved = lookup_.PluginOf(request.plugin_id(), request.volume_id());
  const std::string plugin_id = resolved.ok() ? *resolved : request.plugin_id();
  const VolumeLookup::DeclaredByVolume declared = lookup_.Declared();
  const auto files = declared.find({plugin_id, request.volume_id()});
  const auto held = mounter_.Find(plugin_id, request.volume_id());
  if (held) {
    v1::Volume volume = ToProto(*held, call.may_change);
    if (files != declared.end()) AddDeclared(files->second, &volume);
    co_return volume;
  }
  if (files != declared.end()) {
    co_return DeclaredVolume(plugin_id, request.volume_id(), files->second, call.may_change);
  }
  if (!resolved.ok()) co_return resolved.status();
  co_return NotHeld(plugin_id, request.volume_id());
}

ApiAnswer<v1::ListConsumerMountsResponse> VolumeListApi::ListConsumerMounts(
    v1::ListConsumerMountsRequest request, CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckConsumer(request.consumer()));
  v1::ListConsumerMountsResponse answer;
  const std::vector<DeclaredView> files = declared_.List();
  for (const ConsumerMount& mount : mounter_.MountsOf(request.consumer())) {
    v1::ConsumerMount& shown = *answer.add_mounts() = ToProto(mount, call.may_change);
    const auto its = std::ranges::find_if(files, [&mount](const DeclaredView& file) {
      return file.request.volume_id() == mount.volume_id && file.request.consumer() == mount.consumer &&
             file.request.name() == mount.name;
    });
    if (its != files.end()) shown.set_declared(DeclaredName(*its));
  }
  BERTH_CO_RETURN_IF_ERROR(CheckAnswerSize(answer.ByteSizeLong(), "mounts", request.consumer()));
  if (answer.mounts_size() == 0) {
    co_return absl::NotFoundError(
        fmt::format("consumer {} has nothing published on this node", PrintableName(request.consumer())));
  }
  co_return answer;
}

ApiAnswer<v1::ExplainVolumeResponse> VolumeListApi::ExplainVolume(v1::ExplainVolumeRequest request,
                                                                  CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckVolumeName(request.plugin_id(), request.volume_id()));
  const auto resolved = lookup_.PluginOf(request.plugin_id(), request.volume_id());
  const std::string plugin_id = resolved.ok() ? *resolved : request.plugin_id();
  const auto explained = co_await mounter_.Explain(plugin_id, request.volume_id(), call.deadline);

  const VolumeLookup::DeclaredByVolume declared = lookup_.Declared();
  const auto files = declared.find({plugin_id, request.volume_id()});
  const bool is_declared = files != declared.end();
  v1::ExplainVolumeResponse answer;
  if (explained.ok()) {
    answer = ToProto(*explained, call.may_change);
    if (is_declared) AddDeclared(files->second, answer.mutable_volume());
  } else if (absl::IsNotFound(explained.status()) && is_declared) {
    *answer.mutable_volume() = DeclaredVolume(plugin_id, request.volume_id(), files->second, call.may_change);
  } else {
    co_return resolved.ok() ? explained.status() : resolved.status();
  }
  if (is_declared) {
    // Of one that is only declared, in one file, last_error says it all.
    const bool told = !explained.ok() && files->second.size() == 1;
    for (const DeclaredView& file : files->second) {
      if (!told && !IsWell(file)) answer.add_remarks(DescribeDeclared(file));
    }
  }
  co_return answer;
}

}  // namespace berth
