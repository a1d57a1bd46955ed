#include "csi/health.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/status.h"
#include "csi/names.h"

namespace berth {
namespace {

constexpr int kMost = 8;
constexpr size_t kReasonBytes = 128;
constexpr size_t kMessageBytes = 512;
constexpr size_t kAllBytes = 4096;  // of all of them in words

template <class Entry>
HealthStatus StatusOf(const Entry& entry, std::string (*name)(int)) {
  return {.type = name(entry.status()),
          .reason = Printable(entry.reason(), kReasonBytes),
          .message = Printable(entry.message(), kMessageBytes),
          .capability = ""};
}

std::string Concerns(const ::csi::v1::VolumeCapability& capability) {
  const auto mode = capability.access_mode().mode();
  std::string text = capability.has_block() ? "block" : "mount";
  if (!capability.mount().fs_type().empty())
    text += " " + Printable(capability.mount().fs_type(), kReasonBytes);
  if (mode != ::csi::v1::VolumeCapability::AccessMode::UNKNOWN) text += ", " + AccessModeName(mode);
  return text;
}

}  // namespace

ConditionView ReadHealth(const ::csi::v1::VolumeHealth& health) {
  ConditionView view;
  const int count = std::min(health.health_statuses_size(), kMost);
  for (int i = 0; i < count; ++i) {
    view.statuses.push_back(StatusOf(health.health_statuses(i), VolumeHealthName));
  }
  view.abnormal = !view.statuses.empty();
  view.message = Printable(Describe(view.statuses), kAllBytes);
  return view;
}

ConditionView ReadHealth(const ::csi::v1::VolumeCondition& condition) {
  return {.abnormal = condition.abnormal(), .message = Printable(condition.message()), .statuses = {}};
}

std::vector<HealthStatus> ReadHealth(const ::csi::v1::NodeGetStorageHealthResponse& health) {
  std::vector<HealthStatus> statuses;
  const int count = std::min(health.backend_health_size(), kMost);
  for (int i = 0; i < count; ++i) {
    const auto& entry = health.backend_health(i);
    HealthStatus& status = statuses.emplace_back(StatusOf(entry, StorageHealthName));
    if (entry.has_volume_capability()) status.capability = Concerns(entry.volume_capability());
  }
  return statuses;
}

std::string Describe(const std::vector<HealthStatus>& statuses) {
  std::vector<std::string> parts;
  for (const HealthStatus& status : statuses) {
    std::string part = status.type;
    if (!status.reason.empty()) part += fmt::format(" ({})", status.reason);
    if (!status.capability.empty()) part += fmt::format(" for {}", status.capability);
    if (!status.message.empty()) part += ": " + status.message;
    parts.push_back(std::move(part));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

bool SameKind(const std::vector<HealthStatus>& one, const std::vector<HealthStatus>& other) {
  return std::ranges::equal(one, other, [](const HealthStatus& a, const HealthStatus& b) {
    return a.type == b.type && a.reason == b.reason && a.capability == b.capability;
  });
}

}  // namespace berth
