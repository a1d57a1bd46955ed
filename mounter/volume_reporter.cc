#include "mounter/volume_reporter.h"

#include <fmt/format.h>

#include <utility>

#include "consumers/consumer_watch.h"

namespace berth {

VolumeReporter::VolumeReporter(MounterContext& context, const VolumeMachine& machine, std::string key)
    : context_(context), machine_(machine), key_(std::move(key)), reported_uses_(Uses()) {}

void VolumeReporter::Emit(std::string type, const std::string& consumer, std::string message) const {
  context_.events.Append({.type = std::move(type),
                          .plugin_id = machine_.record().plugin_id,
                          .volume_id = machine_.record().volume_id,
                          .consumer = consumer,
                          .message = std::move(message)});
  ReportView();
}

void VolumeReporter::ReportView() const {
  if (!context_.options.on_volume_changed) return;
  const VolumeRecord& record = machine_.record();
  context_.options.on_volume_changed(record.plugin_id, record.volume_id, machine_.present());
}

void VolumeReporter::ReportUsers(const OnConsumerEnded& on_ended) {
  ReportConsumers(on_ended);
  ReportView();
  const size_t uses = Uses();
  if (uses == std::exchange(reported_uses_, uses) || !context_.options.on_holders_changed) return;
  context_.options.on_holders_changed(machine_.record().plugin_id);
}

std::string VolumeReporter::WatchId(const PublicationRecord& publication) const {
  return fmt::format("{}/{}", key_, publication.component);
}

void VolumeReporter::ReportConsumers(const OnConsumerEnded& on_ended) {
  std::set<std::string> consumers;
  std::map<std::string, ConsumerLife> lives;
  if (machine_.present()) {
    for (const PublicationRecord& p : machine_.record().publications) {
      consumers.insert(p.key.consumer);
      const bool wanted = p.state != PublicationState::kUnpublishing || p.remount_after_undo;
      if (!IsSet(p.life) || !wanted || !context_.recovered) continue;
      const std::string id = WatchId(p);
      lives[id] = p.life;
      const auto known = watched_.find(id);
      if (known != watched_.end() && known->second == p.life) continue;
      context_.consumers.Watch(id, p.life, [on_ended, key = p.key, life = p.life](const std::string& why) {
        on_ended(key, life, why);
      });
    }
  }
  for (const auto& [id, life] : watched_) {
    if (!lives.contains(id)) context_.consumers.Forget(id);
  }
  watched_ = std::move(lives);
  if (consumers == reported_consumers_) return;
  for (const std::string& consumer : consumers) context_.uses(consumer, key_, true);
  for (const std::string& consumer : reported_consumers_) {
    if (!consumers.contains(consumer)) context_.uses(consumer, key_, false);
  }
  reported_consumers_ = std::move(consumers);
}

void VolumeReporter::ReportAwaitingSecrets() {
  const bool awaiting = machine_.present() && machine_.plan().AwaitsSecrets();
  if (awaiting == std::exchange(reported_awaiting_secrets_, awaiting) || !awaiting) return;
  for (const PublicationRecord& p : machine_.record().publications) {
    if (p.state != PublicationState::kPublishing || !p.AwaitsSecrets()) continue;
    Emit("volume.awaiting_secrets", p.key.consumer,
         "it has to be mounted again, and its secrets are never written down: repeat the publish with them, "
         "or unpublish it");
  }
}

}  // namespace berth
