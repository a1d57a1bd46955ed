// VolumeSteps: the node's part of an expansion, believed when the kernel shows it.
#include <absl/strings/numbers.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "mounter/volume_steps.h"

namespace berth {
namespace {

// How many bytes a block device has, as sysfs has it: nothing is opened, so nothing hangs. Unset where it
// does not say.
std::optional<int64_t> DeviceBytes(dev_t device) {
  constexpr int64_t kSector = 512;  // sysfs counts in these, whatever the device's own are
  const auto text = ReadFile(fmt::format("/sys/dev/block/{}:{}/size", major(device), minor(device)), 32);
  int64_t sectors = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &sectors)) return std::nullopt;
  return sectors * kSector;
}

// What a device may lack of its volume's size: one on top of another (LUKS) keeps a header there.
int64_t BytesBeneath(dev_t device) {
  constexpr int64_t kHeader = int64_t{32} << 20;
  std::error_code error;
  const std::filesystem::path slaves =
      fmt::format("/sys/dev/block/{}:{}/slaves", major(device), minor(device));
  const bool bare = std::filesystem::is_empty(slaves, error);
  return error || bare ? 0 : kHeader;
}

}  // namespace

Awaitable<StepReport> VolumeSteps::Expand(VolumeRecord record, ::csi::v1::CapacityRange range,
                                          Secrets secrets, StepProgress progress, TimePoint deadline) {
  constexpr CsiRpc kRpc = CsiRpc::kNodeExpandVolume;
  if (!ExpansionPath(record, *context_.paths).has_value()) {
    co_return StepReport{
        .outcome = CallOutcome::kFinal,
        .error = absl::NotFoundError("neither staged nor published to be written on this node")};
  }
  auto admission = co_await caller_.Admit(kRpc, record.plugin_id, progress, deadline);
  if (!admission.ok()) co_return NotSent(admission.status());
  if (const auto not_wanted = NotWanted(progress)) co_return *not_wanted;
  auto request = admission->Seen(NodeExpandRequest(record, *context_.paths, range, secrets));
  const WallTime began = WallClock::now();
  auto call = admission->client->NodeExpandVolume(std::move(request), deadline);
  const auto answer = co_await caller_.Ask(kRpc, progress, std::move(call));
  StepReport report = ReportAnswer(kRpc, record.plugin_id, answer.status(), began, deadline);
  if (!answer.ok()) co_return report;
  // Less than was requested is no lie: some plugins answer with the room in their file system.
  if (answer->capacity_bytes() < 0) {
    const std::string lie = fmt::format("plugin {} answered OK to {}, but with a capacity of {} bytes",
                                        record.plugin_id, RpcName(kRpc), answer->capacity_bytes());
    caller_.ReportLie(record, "", lie);
    co_return StepReport{.outcome = CallOutcome::kFinal, .error = absl::InternalError(lie)};
  }
  const int64_t wanted = range.required_bytes() > 0 ? range.required_bytes() : answer->capacity_bytes();
  if (const absl::Status grown = DeviceHasGrown(record, wanted); !grown.ok()) {
    const std::string lie =
        fmt::format("plugin {} answered OK to {}, but {}", record.plugin_id, RpcName(kRpc), MessageOf(grown));
    if (record.last_error != lie) caller_.ReportLie(record, "", lie);
    co_return StepReport{.outcome = CallOutcome::kRetry, .error = absl::InternalError(lie)};
  }
  report.capacity_bytes = answer->capacity_bytes();
  co_return report;
}

absl::Status VolumeSteps::DeviceHasGrown(const VolumeRecord& record, int64_t wanted) const {
  if (record.use.access_type != AccessType::kBlock) return absl::OkStatus();
  for (const PublicationRecord& publication : record.publications) {
    if (publication.state != PublicationState::kPublished) continue;
    const auto facts = context_.paths->LookAtTarget(record, publication);
    if (!facts.ok() || !S_ISBLK(facts->mode)) continue;
    const std::optional<int64_t> shown = DeviceBytes(facts->special);
    if (!shown || *shown + BytesBeneath(facts->special) >= wanted) continue;
    return absl::UnavailableError(fmt::format("the block device at {} has {} bytes, and {} are required",
                                              context_.paths->TargetPath(record, publication), *shown,
                                              wanted));
  }
  return absl::OkStatus();
}

}  // namespace berth
