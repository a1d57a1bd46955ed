#include "rpc/volume_stats_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <limits>

#include "base/printable.h"
#include "base/status.h"
#include "request/request_check.h"
#include "rpc/convert.h"

namespace berth {
namespace {

using NodeRpc = ::csi::v1::NodeServiceCapability::RPC;

// How many volumes of one consumer are asked at a time.
constexpr size_t kSideBySide = 16;
// For one volume, so that one that hangs does not cost the others their answer. A caller with less time gets
// what is known a little before that ends.
constexpr auto kStatsWithin = std::chrono::seconds(20);
constexpr auto kToAnswer = std::chrono::milliseconds(500);

bool IsPublished(const VolumeView& volume) {
  return std::ranges::count(volume.publications, PublicationState::kPublished, &PublicationView::state) > 0;
}

int64_t Sum(int64_t one, int64_t other) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return one > kMost - other ? kMost : one + other;
}

// Neither is negative: Readable.
void AddTo(const v1::VolumeUsage& usage, google::protobuf::RepeatedPtrField<v1::VolumeUsage>* total) {
  auto sum = std::find_if(total->begin(), total->end(),
                          [&](const v1::VolumeUsage& other) { return other.unit() == usage.unit(); });
  if (sum == total->end()) {
    *total->Add() = usage;
    return;
  }
  sum->set_total(Sum(sum->total(), usage.total()));
  sum->set_used(Sum(sum->used(), usage.used()));
  sum->set_available(Sum(sum->available(), usage.available()));
}

}  // namespace

ApiAnswer<v1::GetVolumeStatsResponse> VolumeStatsApi::StatsOf(std::string plugin_id, std::string volume_id,
                                                              TimePoint deadline) {
  const auto plugin = control_.plugins().find(plugin_id);
  if (plugin != control_.plugins().end() && plugin->second.facts &&
      !plugin->second.facts->NodeCan(NodeRpc::GET_VOLUME_STATS)) {
    co_return absl::FailedPreconditionError(
        fmt::format("plugin {} does not report the usage of its volumes (no GET_VOLUME_STATS)",
                    PrintableName(plugin_id)));
  }
  BERTH_CO_ASSIGN_OR_RETURN(const ::csi::v1::NodeGetVolumeStatsResponse stats,
                            co_await mounter_.Stats(plugin_id, volume_id, deadline));
  std::set<std::string> dropped;
  v1::GetVolumeStatsResponse answer = Readable(stats, &dropped);
  // A plugin of CSI 1.13 says it by itself (NodeGetVolumeHealth).
  if (!answer.has_condition()) {
    const auto volume = mounter_.Find(plugin_id, volume_id);
    if (volume && volume->condition) *answer.mutable_condition() = ToProto(*volume->condition);
  }
  for (const std::string& what : dropped) {
    if (!reported_dropped_.emplace(plugin_id, what).second) continue;
    events_.Append({.type = "plugin.warning",
                    .plugin_id = plugin_id,
                    .volume_id = volume_id,
                    .message = fmt::format("NodeGetVolumeStats gives {}: that is left out", what)});
  }
  co_return answer;
}

ApiAnswer<v1::GetVolumeStatsResponse> VolumeStatsApi::GetVolumeStats(v1::GetVolumeStatsRequest request,
                                                                     CallInfo call) {
  BERTH_CO_RETURN_IF_ERROR(CheckVolumeName(request.plugin_id(), request.volume_id()));
  BERTH_CO_ASSIGN_OR_RETURN(const std::string plugin_id,
                            lookup_.PluginOf(request.plugin_id(), request.volume_id()));
  co_return co_await StatsOf(plugin_id, request.volume_id(), call.deadline);
}

// The volumes that are asked, and their answers so far. Shared by those who ask.
struct VolumeStatsApi::ConsumerStats {
  explicit ConsumerStats(asio::any_io_executor executor) : bell(std::move(executor)) {}

  std::vector<VolumeView> volumes;
  std::vector<v1::VolumeStats> answers;
  size_t next = 0;  // the first that is not being asked yet
  TimePoint deadline;
  size_t askers = 0;
  Condition bell;  // an asker has ended
};

Awaitable<void> VolumeStatsApi::ReadStats(std::shared_ptr<ConsumerStats> work) {
  while (work->next < work->volumes.size()) {
    const size_t mine = work->next++;
    const VolumeView& volume = work->volumes[mine];
    const auto stats = co_await StatsOf(volume.plugin_id, volume.volume_id,
                                        std::min(work->deadline, Clock::now() + kStatsWithin));
    v1::VolumeStats& answer = work->answers[mine];
    if (!stats.ok()) {
      answer.set_error(Printable(MessageOf(stats.status())));
      if (answer.error().empty()) answer.set_error(std::string(CodeName(stats.status().code())));
      continue;
    }
    *answer.mutable_usage() = stats->usage();
    if (stats->has_condition()) *answer.mutable_condition() = stats->condition();
  }
  --work->askers;
  work->bell.NotifyAll();
}

ApiAnswer<v1::GetConsumerStatsResponse> VolumeStatsApi::GetConsumerStats(v1::GetConsumerStatsRequest request,
                                                                         CallInfo call) {
  const bool all = request.consumer().empty();
  if (!all) BERTH_CO_RETURN_IF_ERROR(CheckConsumer(request.consumer()));
  const auto executor = co_await asio::this_coro::executor;
  const auto work = std::make_shared<ConsumerStats>(executor);
  work->volumes = mounter_.List({.consumer = request.consumer()});
  if (all) std::erase_if(work->volumes, [](const VolumeView& volume) { return !IsPublished(volume); });
  work->deadline = std::max(Clock::now(), call.deadline - kToAnswer);
  if (work->volumes.empty() && !all) {
    co_return absl::NotFoundError(
        fmt::format("consumer {} uses no volume on this node", PrintableName(request.consumer())));
  }
  for (const VolumeView& volume : work->volumes) {
    v1::VolumeStats& answer = work->answers.emplace_back();
    answer.set_plugin_id(ToUtf8(volume.plugin_id));
    answer.set_volume_id(ToUtf8(volume.volume_id));
  }

  TaskScope askers(executor, "stats of a consumer");
  work->askers = std::min(kSideBySide, work->volumes.size());
  for (size_t i = work->askers; i > 0; --i) askers.Spawn(PrintableName(request.consumer()), ReadStats(work));
  bool cancelled = false;
  // The join below must begin also when this call was cancelled; the wait still throws then.
  co_await asio::this_coro::throw_if_cancelled(false);
  try {
    [[maybe_unused]] const bool ended =
        co_await work->bell.WaitUntil([&work] { return work->askers == 0; }, TimePoint::max());
  } catch (const boost::system::system_error&) {
    cancelled = true;  // The caller has gone; those who ask for it end with it.
  }
  co_await askers.Join();
  if (cancelled) co_return absl::CancelledError("the caller has gone");

  v1::GetConsumerStatsResponse answer;
  for (v1::VolumeStats& stats : work->answers) {
    for (const v1::VolumeUsage& usage : stats.usage()) AddTo(usage, answer.mutable_total());
    *answer.add_volumes() = std::move(stats);
  }
  BERTH_CO_RETURN_IF_ERROR(CheckAnswerSize(answer.ByteSizeLong(), "figures", request.consumer()));
  co_return answer;
}

}  // namespace berth
