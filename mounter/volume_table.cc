#include "mounter/volume_table.h"

#include <algorithm>
#include <utility>

namespace berth {

VolumeTable::VolumeTable(MounterContext& context) : context_(context) {
  context_.same_volumes = [this](const VolumeRecord& record) { return SameAs(record); };
  context_.leaves = [this](const VolumeRecord& record) { Leaves(record); };
  context_.volumes_through = [this](const std::string& plugin_id) { return CountThrough(plugin_id); };
  context_.recorded_mounts = [this](const std::set<dev_t>& devices) { return RecordedMounts(devices); };
  context_.uses = [this](const std::string& consumer, const std::string& key, bool used) {
    Uses(consumer, key, used);
  };
  context_.consumer_ended = [this](const std::string& consumer, const std::string& cause, Origin origin) {
    ReportEnded(consumer, cause, origin);
  };
}

std::shared_ptr<VolumeActor> VolumeTable::Add(const std::string& key, VolumeMachine machine) {
  auto on_gone = [this, key] {
    const auto it = volumes_.find(key);
    if (it != volumes_.end()) volumes_.erase(it);
  };
  if (!context_.leaving.empty()) machine.BeginShutdown(context_.leaving);
  auto actor = VolumeActor::Create(context_, std::move(machine), std::move(on_gone));
  volumes_[key] = actor;
  actor->ReportUsers();
  return actor;
}

std::shared_ptr<VolumeActor> VolumeTable::Find(const std::string& plugin_id,
                                               const std::string& volume_id) const {
  const auto it = volumes_.find(VolumePaths::VolumeKey(plugin_id, volume_id));
  return it == volumes_.end() ? nullptr : it->second;
}

std::shared_ptr<VolumeActor> VolumeTable::FindOrAdd(const std::string& plugin_id,
                                                    const std::string& volume_id) {
  if (auto known = Find(plugin_id, volume_id)) return known;
  VolumeRecord record;
  record.plugin_id = plugin_id;
  record.volume_id = volume_id;
  return Add(VolumePaths::VolumeKey(plugin_id, volume_id), VolumeMachine::Fresh(std::move(record)));
}

std::vector<std::shared_ptr<VolumeActor>> VolumeTable::Of(const std::string& consumer) const {
  std::vector<std::shared_ptr<VolumeActor>> actors;
  const auto it = by_consumer_.find(consumer);
  if (it == by_consumer_.end()) return actors;
  for (const std::string& key : it->second) {
    if (const auto actor = volumes_.find(key); actor != volumes_.end()) actors.push_back(actor->second);
  }
  return actors;
}

std::vector<const VolumeRecord*> VolumeTable::SameAs(const VolumeRecord& record) const {
  std::vector<const VolumeRecord*> same;
  for (const auto& [key, actor] : volumes_) {
    const VolumeRecord& other = actor->machine().record();
    const bool itself = other.plugin_id == record.plugin_id && other.volume_id == record.volume_id;
    if (actor->present() && !itself && !other.without_plugin && record.IsSame(other)) same.push_back(&other);
  }
  return same;
}

void VolumeTable::Leaves(const VolumeRecord& record) {
  for (const VolumeRecord* other : SameAs(record)) {
    if (const auto actor = Find(other->plugin_id, other->volume_id)) actor->AddOtherName(record);
  }
}

size_t VolumeTable::CountThrough(const std::string& plugin_id) const {
  return static_cast<size_t>(std::ranges::count_if(volumes_, [&plugin_id](const auto& entry) {
    return entry.second->present() && entry.second->machine().record().plugin_id == plugin_id;
  }));
}

std::vector<uint64_t> VolumeTable::RecordedMounts(const std::set<dev_t>& devices) const {
  std::vector<uint64_t> mounts;
  for (const auto& [key, actor] : volumes_) {
    if (!actor->present()) continue;
    const VolumeRecord& record = actor->machine().record();
    const bool shares = std::ranges::any_of(
        record.objects, [&devices](const KernelObject& object) { return devices.contains(object.device); });
    if (!shares) continue;
    const std::vector<uint64_t> theirs = record.Mounts();
    mounts.insert(mounts.end(), theirs.begin(), theirs.end());
  }
  return mounts;
}

void VolumeTable::Uses(const std::string& consumer, const std::string& key, bool used) {
  if (used) {
    by_consumer_[consumer].insert(key);
    return;
  }
  const auto it = by_consumer_.find(consumer);
  if (it == by_consumer_.end()) return;
  it->second.erase(key);
  if (!it->second.empty()) return;
  by_consumer_.erase(it);
  ForgetEnded(consumer);
}

void VolumeTable::ReportEnded(const std::string& consumer, const std::string& cause, Origin origin) {
  if (!reported_ended_.emplace(consumer, origin).second || !context_.options.on_consumer_ended) return;
  context_.options.on_consumer_ended(consumer, cause, origin);
}

void VolumeTable::ForgetEnded(const std::string& consumer) {
  std::erase_if(reported_ended_, [&consumer](const auto& told) { return told.first == consumer; });
}

}  // namespace berth
