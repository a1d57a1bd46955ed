#include "mounter/remainders.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "mounter/journal.pb.h"
#include "mounter/volume_paths.h"

namespace berth {

std::string Remainders::Encode(const Kept& kept) const {
  journal::v1::Remainder out;
  out.set_plugin_id(kept.remainder.plugin_id);
  out.set_volume_id(kept.remainder.volume_id);
  out.set_owed_expansion_bytes(kept.remainder.owed_expansion_bytes);
  out.set_number(kept.number);
  return out.SerializeAsString();
}

Remainders::Rows Remainders::Load(const Rows& rows) {
  Rows changed;
  for (const auto& [key, bytes] : rows) {
    journal::v1::Remainder in;
    const bool read = in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
    // The key is a hash of both ids, which tells most damage.
    if (!read || key != VolumePaths::VolumeKey(in.plugin_id(), in.volume_id())) {
      SPDLOG_ERROR("journal: what remains of volume {} cannot be read, and is forgotten", Printable(key, 64));
      changed[key] = "";
      continue;
    }
    Kept kept{.remainder = {.plugin_id = in.plugin_id(),
                            .volume_id = in.volume_id(),
                            .owed_expansion_bytes = std::max<int64_t>(in.owed_expansion_bytes(), 0)},
              .number = in.number()};
    next_number_ = std::max(next_number_, kept.number + 1);
    if (kept.remainder.Nothing()) {
      changed[key] = "";
    } else {
      kept_[key] = std::move(kept);
    }
  }
  ForgetOldest(&changed);
  return changed;
}

Remainder Remainders::Of(const std::string& plugin_id, const std::string& volume_id) const {
  const auto it = kept_.find(VolumePaths::VolumeKey(plugin_id, volume_id));
  if (it != kept_.end()) return it->second.remainder;
  return {.plugin_id = plugin_id, .volume_id = volume_id};
}

std::vector<Remainder> Remainders::All() const {
  std::vector<Remainder> all;
  for (const auto& [key, kept] : kept_) all.push_back(kept.remainder);
  return all;
}

Remainders::Rows Remainders::Set(const Remainder& remainder) {
  const std::string key = VolumePaths::VolumeKey(remainder.plugin_id, remainder.volume_id);
  Rows rows;
  if (remainder.Nothing()) {
    if (kept_.erase(key) > 0) rows[key] = "";
    return rows;
  }
  Kept& kept = kept_[key];
  if (kept.number == 0) kept.number = next_number_++;
  kept.remainder = remainder;
  rows[key] = Encode(kept);
  ForgetOldest(&rows);
  return rows;
}

void Remainders::ForgetOldest(Rows* rows) {
  while (kept_.size() > limit_) {
    const auto oldest =
        std::ranges::min_element(kept_, {}, [](const auto& entry) { return entry.second.number; });
    (*rows)[oldest->first] = "";
    const Remainder forgotten = oldest->second.remainder;
    kept_.erase(oldest);
    if (on_forgotten) on_forgotten(forgotten);
  }
}

}  // namespace berth
