#include "mounter/volume_advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "base/shell_quoted.h"
#include "base/status.h"
#include "mounter/holder_names.h"

namespace berth {
namespace {

bool Leaves(const PublicationView& use) {
  return use.state == PublicationState::kUnpublishing && !use.remount_after_undo;
}

std::string Who(const PublicationView& use) { return Printable(use.consumer, 200); }

// "berthctl volume unpublish --plugin P --volume V --consumer C --name N", ready to be run.
std::string Unpublish(const VolumeView& volume, const PublicationView& use) {
  std::string command =
      fmt::format("berthctl volume unpublish --plugin {} --volume {} --consumer {}",
                  ShellQuoted(volume.plugin_id), ShellQuoted(volume.volume_id), ShellQuoted(use.consumer));
  if (!use.name.empty()) command += " --name " + ShellQuoted(use.name);
  return command;
}

std::string RestartPlugin(const VolumeView& volume) {
  return fmt::format("berthctl plugin restart {}", ShellQuoted(volume.plugin_id));
}

std::string PluginHangs(const VolumeView& volume) {
  return fmt::format(
      "The plugin itself hangs, so restart it: {} (it waits for the deadline of the call; with --force it "
      "does "
      "not). The volume is then released, or mounted, by itself.",
      RestartPlugin(volume));
}

// `use`: one that is to end; null: only the staging is left, and it does not matter which use it was for.
std::string ForcedUnpublish(const VolumeView& volume, const PublicationView* use) {
  const PublicationView nobody{.consumer = "none"};
  return fmt::format("{} --force", Unpublish(volume, use == nullptr ? nobody : *use));
}

std::string PluginMissing(const VolumeView& volume, const PublicationView* use) {
  const std::string back = fmt::format("Put the file of plugin {} back into plugins.d, then: berthctl reload",
                                       Printable(volume.plugin_id, 128));
  if (volume.without_plugin) return back + ". It undoes its part then.";
  return fmt::format("{}. If it never comes back, end those who use the volume, then: {}", back,
                     ForcedUnpublish(volume, use));
}

// `use`: one that a command for the whole volume may name; null: no use.
std::string Hangs(const VolumeView& volume, const PublicationView* use) {
  std::string text = "Wait, or bring its server back: everything goes on by itself then.";
  std::vector<std::string> levers;
  if (use != nullptr && !Leaves(*use)) levers.push_back(fmt::format("end {}", Who(*use)));
  if (use != nullptr && !volume.detached_at) {
    if (!volume.aborted_at) {
      levers.push_back(fmt::format("{} --force (what it has not written is lost)", Unpublish(volume, *use)));
    }
    levers.push_back(fmt::format("{} --lazy (it stays in use until its users end)", Unpublish(volume, *use)));
  }
  levers.push_back(RestartPlugin(volume));
  return fmt::format("{} Only if it never comes back, in this order until it is released: {}", text,
                     fmt::join(levers, "; then "));
}

std::string Dead(const VolumeView& volume, const PublicationView& use) {
  if (use.ephemeral) {
    return fmt::format(
        "An ephemeral volume is not repaired, since its unpublish deletes it. Once {} has ended: {}",
        Who(use), Unpublish(volume, use));
  }
  if (use.remount || use.origin == Origin::kDeclared) {
    return fmt::format("It is mounted again by itself. Restart {} then, so that it sees the new mount.",
                       Who(use));
  }
  return fmt::format("End {}, then {}, and publish it again", Who(use), Unpublish(volume, use));
}

std::string OfBlocked(const VolumeView& volume, const PublicationView& use) {
  const bool alone = volume.publications.size() == 1;
  const std::string_view others = alone ? "" : " The other uses of the volume are not affected.";
  if (use.origin == Origin::kScheduler) {
    // Another node may have it by now: to repeat the publish by hand is no advice.
    return fmt::format(
        "Nothing on this node: {} goes on once its scheduler confirms it. To release it here: {}{}{}",
        Who(use), Unpublish(volume, use), alone ? "" : ".", others);
  }
  return fmt::format("Publish it again for {} if it is still needed; else: {}{}{}", Who(use),
                     Unpublish(volume, use), alone ? "" : ".", others);
}

// About those who have the volume, or stand in the way of an unpublish.
std::string InUse(const VolumeView& volume) {
  std::set<int64_t> pids;
  std::set<uint32_t> users;  // with mounts of their own
  bool inside = false;
  for (const MountHolder& holder : volume.holders) {
    inside = inside || holder.how.starts_with(kMountedInside);
    if (holder.pid == 0) continue;
    pids.insert(holder.pid);
    const bool other_mounts = holder.how.starts_with(kInAnotherNamespace);
    if (other_mounts && holder.uid.value_or(0) != 0) users.insert(*holder.uid);
  }
  std::string text = "End those who use it";
  if (!pids.empty()) text += fmt::format(" (kill {})", fmt::join(pids, " "));
  if (inside) text += ", and unmount what is mounted inside it";
  text += ": it is released by itself then. Until then it is not free: do not attach it to another node.";
  if (!users.empty()) {
    text += fmt::format(
        " A mount namespace of a user's own copies every mount that is there when it is made; \"sysctl -w "
        "user.max_user_namespaces=0\" keeps users (here: {}) from making any, also containers without root.",
        fmt::join(users, ", "));
  }
  return text;
}

const PublicationView* Find(const VolumeView& volume, bool (*which)(const PublicationView&)) {
  const auto found = std::ranges::find_if(volume.publications, which);
  return found == volume.publications.end() ? nullptr : &*found;
}

}  // namespace

std::string AdviceFor(const VolumeView& volume) {
  const PublicationView* leaving = Find(volume, Leaves);
  const PublicationView* any = volume.publications.empty() ? nullptr : &volume.publications.front();
  if (volume.plugin_missing) return PluginMissing(volume, leaving != nullptr ? leaving : any);
  if (volume.stuck && volume.stuck->plugin_hangs) return PluginHangs(volume);
  const PublicationView* hung = Find(volume, [](const PublicationView& p) { return !p.hung.empty(); });
  if (volume.stuck || hung != nullptr) {
    return Hangs(volume, leaving != nullptr ? leaving : (hung != nullptr ? hung : any));
  }
  if (const auto* dead =
          Find(volume, [](const PublicationView& p) { return !p.dead.empty() && !Leaves(p); })) {
    return Dead(volume, *dead);
  }
  if (const auto* read_only =
          Find(volume, [](const PublicationView& p) { return !p.writes_refused.empty() && !Leaves(p); })) {
    return fmt::format(
        "Find out why it refuses writes (dmesg), end {}, and unpublish the volume everywhere on this node: "
        "{}. "
        "Check its file system (fsck) before it is published again.",
        Who(*read_only), Unpublish(volume, *read_only));
  }
  if (volume.awaiting_secrets) {
    const auto* waits = Find(volume, [](const PublicationView& p) { return p.awaiting_secrets; });
    const PublicationView* use = waits != nullptr ? waits : any;
    return fmt::format("Publish it again with its secrets (--secrets-file){}",
                       use == nullptr ? "" : ", or release it: " + Unpublish(volume, *use));
  }
  if (const auto* blocked = Find(volume, [](const PublicationView& p) { return p.blocked.has_value(); })) {
    return OfBlocked(volume, *blocked);
  }
  if (!volume.holders.empty() || (volume.still_in_use && volume.publications.empty())) return InUse(volume);
  if (volume.plugin_refuses) {
    const std::string logs =
        fmt::format("Find out why its plugin refuses: berthctl plugin logs {}. It is asked again by itself",
                    ShellQuoted(volume.plugin_id));
    if (volume.without_plugin) return logs + ".";
    return fmt::format("{}. If it never can, release it without: {}", logs, ForcedUnpublish(volume, leaving));
  }
  if (!volume.running.empty() || volume.next_retry_at) return "";
  const auto* lost = Find(volume, [](const PublicationView& p) {
    return p.state == PublicationState::kPublished && p.uncertain;
  });
  if (lost != nullptr) {
    return fmt::format("Publish it again for {}, or unpublish it: {}", Who(*lost), Unpublish(volume, *lost));
  }
  if (volume.last_error.empty() || any == nullptr) return "";
  return fmt::format("Repeat what failed, or unpublish it: {}",
                     Unpublish(volume, leaving != nullptr ? *leaving : *any));
}

}  // namespace berth
