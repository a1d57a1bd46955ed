#include "mounter/volume_queries.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/safe_path.h"
#include "base/statmount.h"
#include "mounts/kernel_object.h"

namespace berth {
namespace {

size_t CountDeclared(const VolumeRecord& record) {
  return static_cast<size_t>(
      std::ranges::count(record.publications, Origin::kDeclared, &PublicationRecord::origin));
}

// Whether the filter applies, but for its consumer and its limit.
bool Applies(const VolumeFilter& filter, const VolumeRecord& record) {
  return (filter.plugin_id.empty() || record.plugin_id == filter.plugin_id) &&
         record.label.starts_with(filter.label_prefix) && (!filter.declared || CountDeclared(record) > 0) &&
         std::tie(record.plugin_id, record.volume_id) >
             std::tie(filter.after.plugin_id, filter.after.volume_id);
}

// `facts` of its target, which is there.
ConsumerMount ToMount(const VolumeRecord& record, const PublicationRecord& publication,
                      const PathFacts& facts, std::string target) {
  ConsumerMount mount{.plugin_id = record.plugin_id,
                      .volume_id = record.volume_id,
                      .consumer = publication.key.consumer,
                      .name = publication.key.name,
                      .source_path = std::move(target),
                      .access_type = record.use.access_type,
                      .readonly = publication.readonly,
                      .fs_type = "",
                      .mount_flags = {},
                      .propagation = ""};
  if (record.use.access_type == AccessType::kBlock) {
    mount.device_major = major(facts.special);
    mount.device_minor = minor(facts.special);
    return mount;
  }
  mount.fs_type = record.use.fs_type;
  if (const auto told = StatMount(facts.mount_id); told.ok() && told->has_value()) {
    mount.fs_type = (*told)->fs_type;
  } else if (const auto shown = ShownAt(mount.source_path, facts); shown.ok()) {
    mount.fs_type = shown->fs_type;
  }
  mount.mount_flags = publication.MountFlags(record.use);
  // What a runtime mounts inside stays with its consumer.
  mount.propagation = "rprivate";
  return mount;
}

}  // namespace

std::vector<VolumeView> VolumeQueries::List(const VolumeFilter& filter) const {
  // Views are large: the actors are sorted, and only those views are made that are wanted.
  std::vector<const VolumeActor*> actors;
  const auto add = [&](const std::shared_ptr<VolumeActor>& actor) {
    if (actor->present() && Applies(filter, actor->machine().record())) actors.push_back(actor.get());
  };
  if (filter.consumer.empty()) {
    for (const auto& [key, actor] : table_.all()) add(actor);
  } else {
    for (const auto& actor : table_.Of(filter.consumer)) add(actor);
  }
  const auto end = actors.begin() + static_cast<std::ptrdiff_t>(std::min(filter.limit, actors.size()));
  std::ranges::partial_sort(actors, end, {}, [](const VolumeActor* actor) {
    const VolumeRecord& record = actor->machine().record();
    return std::tie(record.plugin_id, record.volume_id);
  });
  std::vector<VolumeView> views;
  views.reserve(static_cast<size_t>(end - actors.begin()));
  for (auto actor = actors.begin(); actor != end; ++actor) views.push_back((*actor)->View());
  return views;
}

VolumeCounts VolumeQueries::Count() const {
  VolumeCounts counts;
  for (const auto& [key, actor] : table_.all()) {
    if (!actor->present()) continue;
    const VolumeRecord& record = actor->machine().record();
    ++counts.volumes[record.plugin_id];
    counts.publications += static_cast<int>(record.publications.size());
    counts.declared += static_cast<int>(CountDeclared(record));
    counts.mounted += static_cast<int>(
        std::ranges::count(record.publications, PublicationState::kPublished, &PublicationRecord::state));
  }
  return counts;
}

std::optional<VolumeView> VolumeQueries::Find(const std::string& plugin_id,
                                              const std::string& volume_id) const {
  const auto actor = table_.Find(plugin_id, volume_id);
  if (actor == nullptr || !actor->present()) return std::nullopt;
  return actor->View();
}

std::vector<std::string> VolumeQueries::PluginsOf(const std::string& volume_id,
                                                  const std::string& name) const {
  std::vector<std::string> ids;
  for (const auto& [key, actor] : table_.all()) {
    const VolumeRecord& record = actor->machine().record();
    const bool its =
        record.volume_id == volume_id && (record.plugin_id == name || record.driver_name == name);
    if (its && actor->present()) ids.push_back(record.plugin_id);
  }
  return ids;
}

std::optional<VolumeView> VolumeQueries::ShownBy(const std::string& volume_id,
                                                 const std::string& name) const {
  for (const auto& [key, actor] : table_.all()) {
    const std::vector<OtherName>& names = actor->machine().record().other_names;
    const bool its = std::ranges::any_of(names, [&](const OtherName& other) {
      return other.volume_id == volume_id && (other.plugin_id == name || other.driver_name == name);
    });
    if (its && actor->present()) return actor->View();
  }
  return std::nullopt;
}

std::vector<std::string> VolumeQueries::HeldThrough(const std::string& plugin_id) const {
  std::vector<std::string> held;
  for (const auto& [key, actor] : table_.all()) {
    const VolumeRecord& record = actor->machine().record();
    if (!actor->present() || record.plugin_id != plugin_id) continue;
    const std::string volume = Printable(record.volume_id, 128);
    for (const PublicationRecord& publication : record.publications) {
      held.push_back(fmt::format("volume {} by {}", volume, Describe(publication.key)));
    }
    if (record.publications.empty()) {
      held.push_back(
          fmt::format("volume {}, {}", volume,
                      actor->machine().plan().InUseByKernel() ? record.last_error : "being unstaged"));
    }
  }
  return held;
}

std::optional<ConsumerMount> VolumeQueries::MountAt(const VolumeRecord& record,
                                                    const PublicationRecord& publication) const {
  if (publication.state != PublicationState::kPublished || publication.uncertain) return std::nullopt;
  const auto facts = context_.paths->LookAtTarget(record, publication);
  if (!facts.ok() || !IsThere(record, *facts)) return std::nullopt;
  return ToMount(record, publication, *facts, context_.paths->TargetPath(record, publication));
}

std::optional<ConsumerMount> VolumeQueries::MountOf(const std::string& plugin_id,
                                                    const std::string& volume_id, const std::string& consumer,
                                                    const std::string& name) const {
  const auto actor = table_.Find(plugin_id, volume_id);
  if (actor == nullptr || !actor->present()) return std::nullopt;
  const VolumeRecord& record = actor->machine().record();
  const PublicationRecord* publication = record.Find({.consumer = consumer, .name = name});
  return publication == nullptr ? std::nullopt : MountAt(record, *publication);
}

std::vector<ConsumerMount> VolumeQueries::MountsOf(const std::string& consumer) const {
  std::vector<ConsumerMount> mounts;
  for (const auto& actor : table_.Of(consumer)) {
    if (!actor->present()) continue;
    const VolumeRecord& record = actor->machine().record();
    for (const PublicationRecord& p : record.publications) {
      if (p.key.consumer != consumer) continue;
      if (auto mount = MountAt(record, p)) mounts.push_back(*std::move(mount));
    }
  }
  std::ranges::sort(mounts, [](const ConsumerMount& a, const ConsumerMount& b) {
    return std::tie(a.plugin_id, a.volume_id, a.name) < std::tie(b.plugin_id, b.volume_id, b.name);
  });
  return mounts;
}

}  // namespace berth
