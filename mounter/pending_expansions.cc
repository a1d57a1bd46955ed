#include "mounter/pending_expansions.h"

#include <absl/strings/numbers.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "base/status.h"
#include "mounter/volume_paths.h"

namespace berth {
namespace {

JournalChange Row(const std::string& key, std::string value) {
  return {
      .table = JournalChange::Table::kMeta, .key = std::string(kExpansion) + key, .value = std::move(value)};
}

}  // namespace

void PendingExpansions::Load(const std::map<std::string, std::string>& meta) {
  for (const auto& [key, value] : meta) {
    if (!key.starts_with(kExpansion)) continue;
    int64_t bytes = 0;
    if (absl::SimpleAtoi(value, &bytes) && bytes > 0) {
      bytes_[key.substr(kExpansion.size())] = bytes;
    } else {
      SPDLOG_ERROR("journal: {} cannot be read: {}", Printable(key, 64), Printable(value, 64));
    }
  }
}

int64_t PendingExpansions::Of(const std::string& plugin_id, const std::string& volume_id) const {
  const auto it = bytes_.find(VolumePaths::VolumeKey(plugin_id, volume_id));
  return it == bytes_.end() ? 0 : it->second;
}

absl::StatusOr<JournalRows> PendingExpansions::Set(const std::string& plugin_id, const std::string& volume_id,
                                                   int64_t bytes) {
  const std::string key = VolumePaths::VolumeKey(plugin_id, volume_id);
  if (!bytes_.contains(key) && bytes_.size() >= limit_) {
    return absl::ResourceExhaustedError(
        fmt::format("expansions of {} volumes that are not here are pending already", bytes_.size()));
  }
  bytes_[key] = bytes;
  return JournalRows{Row(key, std::to_string(bytes))};
}

JournalRows PendingExpansions::End(const std::string& plugin_id, const std::string& volume_id) {
  const std::string key = VolumePaths::VolumeKey(plugin_id, volume_id);
  return bytes_.erase(key) == 0 ? JournalRows() : JournalRows{Row(key, "")};
}

}  // namespace berth
