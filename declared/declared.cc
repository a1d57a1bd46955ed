#include "declared/declared.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/safe_path.h"
#include "mounter/root_permissions.h"

namespace berth {
namespace {

// A list of texts of any bytes, as one that no other list gives.
class Parts {
 public:
  void Add(std::string_view text) { joined_ += fmt::format("{}:{};", text.size(), text); }
  void Add(const std::map<std::string, std::string>& values) {
    Add(std::to_string(values.size()));
    for (const auto& [key, value] : values) {
      Add(key);
      Add(value);
    }
  }
  [[nodiscard]] const std::string& joined() const { return joined_; }

 private:
  std::string joined_;
};

DeclaredStep Wait(std::string state) { return {DeclaredAction::kWait, std::move(state), std::nullopt}; }

// The action, or the wait for its time.
DeclaredStep Do(DeclaredAction action, std::string state, const DeclaredEntry& entry, TimePoint now) {
  if (now < entry.not_before) return {DeclaredAction::kWait, "retrying: " + state, entry.not_before};
  return {action, std::move(state), std::nullopt};
}

// What was done is undone, step by step.
DeclaredStep Release(const DeclaredEntry& entry, const DeclaredFacts& facts, TimePoint now) {
  if (facts.publication.has_value() && facts.declared) {
    return Do(DeclaredAction::kUnpublish, "releasing", entry, now);
  }
  if (!entry.record.has_value()) return {DeclaredAction::kGone, "released"};
  if (entry.record->attach_sent() && !facts.attached_for_another) {
    if (!facts.held_by.empty()) {
      return Wait(fmt::format("releasing: to be detached once {} has left", facts.held_by));
    }
    if (facts.attach_busy) return Wait("releasing: the volume is being attached or detached");
    if (!facts.controller_ready) {
      return Wait(fmt::format("releasing: to be detached: {}", facts.controller_why));
    }
    return Do(DeclaredAction::kDetach, "detaching", entry, now);
  }
  return Do(DeclaredAction::kForget, "releasing", entry, now);
}

bool Attaches(const DeclaredUse& use, const DeclaredFacts& facts) {
  if (use.request.publish_context.has_value() || use.request.ephemeral) return false;
  return use.attach.value_or(facts.needs_attach);
}

DeclaredStep Bring(const DeclaredEntry& entry, const DeclaredUse& use, const DeclaredFacts& facts,
                   TimePoint now) {
  if (facts.publication.has_value() && !facts.declared) {
    return Wait(
        "waiting: it is published by a request for the same consumer and name: unpublish that, or name "
        "another "
        "consumer in the file");
  }
  if (facts.publication == PublicationState::kPublished && facts.blocked.empty() &&
      entry.record.has_value()) {
    if (facts.path_pending) {
      return Do(DeclaredAction::kPublish, fmt::format("mounting at {}", use.request.path.path), entry, now);
    }
    // The plugin is not called for it.
    if (entry.tell_anew) return Do(DeclaredAction::kPublish, "publishing", entry, now);
    return {DeclaredAction::kNothing, "published"};
  }
  if (!facts.leaving.empty()) return Wait(fmt::format("waiting: {}", facts.leaving));
  if (!facts.plugin_ready) return Wait(fmt::format("waiting: {}", facts.plugin_why));
  if (!entry.record.has_value()) return Do(DeclaredAction::kRemember, "publishing", entry, now);
  if (Attaches(use, facts) && !entry.record->has_publish_context()) {
    if (facts.attach_busy) return Wait("waiting: the volume is being attached or detached for another file");
    if (!facts.controller_ready) {
      return Wait(fmt::format("waiting: the volume must be attached: {}", facts.controller_why));
    }
    return Do(DeclaredAction::kAttach, "attaching", entry, now);
  }
  return Do(DeclaredAction::kPublish, "publishing", entry, now);
}

}  // namespace

std::string MountDigest(const PublishRequest& request, std::optional<bool> attach) {
  Parts parts;
  parts.Add(request.plugin_id);
  parts.Add(request.volume_id);
  parts.Add(request.consumer);
  parts.Add(request.name);
  parts.Add(std::to_string(static_cast<int>(request.use.access_mode)));
  parts.Add(std::to_string(static_cast<int>(request.use.access_type)));
  parts.Add(request.use.fs_type);
  parts.Add(std::to_string(request.use.mount_flags.size()));
  for (const std::string& flag : request.use.mount_flags) parts.Add(flag);
  parts.Add(request.use.volume_mount_group);
  parts.Add(request.readonly ? "ro" : "rw");
  parts.Add(request.ephemeral ? "ephemeral" : "");
  parts.Add(request.volume_context);
  parts.Add(request.publish_context.has_value() ? "attached" : "");
  parts.Add(request.publish_context.value_or(std::map<std::string, std::string>{}));
  parts.Add(attach.has_value() ? (*attach ? "attach" : "as it is") : "");
  // They are set when it is published, and only then.
  if (const RootPermissions& root = request.permissions; Wanted(root)) {
    parts.Add(root.has_owner() ? std::to_string(root.owner()) : "");
    parts.Add(root.has_group() ? std::to_string(root.group()) : "");
    parts.Add(root.has_mode() ? std::to_string(root.mode()) : "");
    parts.Add(root.recursive() ? "recursive" : "");
    parts.Add(root.selinux_label());
  }
  // Hashed: flags and contexts may be secret.
  return HashComponent({parts.joined()});
}

DeclaredStep NextStep(const DeclaredEntry& entry, const DeclaredFacts& facts, TimePoint now) {
  switch (entry.will) {
    case DeclaredEntry::Will::kKept:
      return Wait("left as it is: its file cannot be read");
    case DeclaredEntry::Will::kWithdrawn:
      return Release(entry, facts, now);
    case DeclaredEntry::Will::kWanted:
      break;
  }
  if (!entry.use.has_value()) return Wait("left as it is: its file cannot be read");
  if (entry.record.has_value() && entry.record->mount_digest() != entry.use->mount_digest) {
    DeclaredStep step = Release(entry, facts, now);
    if (step.state == "releasing") step.state = "releasing: its file was changed";
    return step;
  }
  const bool released = IsReleased(entry, facts);
  const std::string noted = entry.record.has_value() ? entry.record->released_in_boot() : "";
  if (entry.record.has_value() && noted != (released ? entry.boot_id : "")) {
    return Do(DeclaredAction::kNoteRelease, released ? "released" : "publishing", entry, now);
  }
  if (released)
    return Wait("waiting: released, by hand or as its consumer ended; a reload publishes it again");
  return Bring(entry, *entry.use, facts, now);
}

bool IsReleased(const DeclaredEntry& entry, const DeclaredFacts& facts) {
  if (facts.declared && facts.publication == PublicationState::kPublished) return false;
  if (entry.released) return true;
  const bool gone = !facts.publication.has_value() || (facts.declared && facts.being_unpublished);
  return entry.was_published && gone;
}

bool IsPublished(const DeclaredEntry& entry, const DeclaredFacts& facts) {
  const bool leaves = entry.will == DeclaredEntry::Will::kWithdrawn ||
                      (entry.use.has_value() && entry.record.has_value() &&
                       entry.record->mount_digest() != entry.use->mount_digest);
  return facts.publication == PublicationState::kPublished && facts.declared && facts.blocked.empty() &&
         !facts.lost && !facts.path_pending && !leaves;
}

DeclaredKey KeyOf(const DeclaredRecord& record) {
  return {record.plugin(), record.volume_id(), record.consumer(), record.name()};
}

}  // namespace berth
