#include "mounter/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/shell_quoted.h"
#include "base/size_text.h"
#include "base/status.h"
#include "mounter/volume_advice.h"
#include "mounter/volume_machine.h"

namespace berth {
namespace {

using Severity = Finding::Severity;

std::string Seconds(Duration age) {
  return fmt::format("{} s", std::chrono::duration_cast<std::chrono::seconds>(age).count());
}

std::string WhatIsLeft(const Leftover& leftover, const std::string& tree) {
  const auto [parent, name] = [&tree] {
    const size_t slash = tree.rfind('/');
    return std::pair(tree.substr(0, slash), tree.substr(slash + 1));
  }();
  return fmt::format(
      "on the disk, beneath the mount of the tree, there are files that cannot be seen: {}. To move them: "
      "mount "
      "--bind {} /mnt; mv /mnt/{}/{} DESTINATION; umount /mnt",
      Describe(leftover), Printable(parent, 512), Printable(name, 128), Printable(leftover.name, 256));
}

class VolumeExamination {
 public:
  VolumeExamination(const VolumeEvidence& volume, const std::string& tree) : volume_(volume), tree_(tree) {}

  std::vector<Diagnosis> Run() {
    Row();
    Directory();
    if (volume_.leftover) Left(*volume_.leftover);
    for (const PublicationRecord& p : volume_.record.publications) Publication(p);
    Progress();
    const std::string advice = AdviceFor(volume_.view);
    for (Diagnosis& diagnosis : found_) diagnosis.finding.advice = advice;
    return std::move(found_);
  }

 private:
  Diagnosis& Add(Severity severity, std::string code, const PublicationKey& publication, std::string text) {
    Diagnosis diagnosis;
    diagnosis.key = volume_.key;
    diagnosis.publication = publication;
    Finding& finding = diagnosis.finding;
    finding.severity = severity;
    finding.code = std::move(code);
    finding.plugin_id = volume_.record.plugin_id;
    finding.volume_id = volume_.record.volume_id;
    finding.consumer = publication.consumer;
    finding.path = fmt::format("{}/{}", tree_, volume_.key);
    finding.text = std::move(text);
    found_.push_back(std::move(diagnosis));
    return found_.back();
  }
  static void Repair(Diagnosis& diagnosis, RepairKind kind, std::string what) {
    diagnosis.repair = kind;
    diagnosis.finding.repair = std::move(what);
  }

  void Row() {
    if (!volume_.in_journal) {
      Repair(
          Add(Severity::kWarning, "row.stale", {},
              "what the journal says of it on the disk is not what holds: a crash now would go back to that"),
          RepairKind::kWriteRow, "write its row again");
    }
    if (volume_.record.rebuilt) {
      Add(Severity::kWarning, "row.rebuilt", {},
          "rebuilt after the journal was lost: its contexts and mount flags are not known, so that it is "
          "not "
          "mounted again of itself before it is published once more");
    }
  }

  void Directory() {
    const auto& publications = volume_.record.publications;
    // After a reboot it is made again by the next step.
    const bool needed = std::ranges::any_of(publications, [](const PublicationRecord& p) {
      return p.state == PublicationState::kPublished && !p.uncertain && !p.BlockedBecause();
    });
    if (!volume_.directory_there && needed) {
      Add(Severity::kError, "directory.missing", {},
          "its directory was removed: unpublish it, and publish it again");
    }
    if (volume_.identity_problem.empty()) return;
    Repair(Add(Severity::kWarning, "identity.wrong", {},
               fmt::format("its identity file would not bring it back, should the journal be lost: {}",
                           volume_.identity_problem)),
           RepairKind::kWriteIdentity, "write its identity file again");
  }

  void Left(const Leftover& leftover) {
    Add(Severity::kWarning, "tree.leftover", {}, WhatIsLeft(leftover, tree_));
  }

  void Publication(const PublicationRecord& p) {
    const std::string who = Describe(p.key);
    if (const auto blocked = p.BlockedBecause()) {
      Add(Severity::kWarning, "publication.blocked", p.key, fmt::format("{}: {}", who, blocked->text));
      return;
    }
    if (p.state != PublicationState::kPublished) return;
    Path(p);
    const auto shown = volume_.targets.find(p.key);
    if (shown == volume_.targets.end()) return;
    const ShownMount& mount = shown->second;
    if (!mount.error.empty()) {
      Add(Severity::kError, "mount.unknown", p.key,
          fmt::format("{}: what is mounted cannot be asked: {}", who, mount.error));
    } else if (!mount.there) {
      Mountable(Add(Severity::kError, "mount.missing", p.key,
                    fmt::format("{}: published, and not mounted: it sees an empty directory", who)),
                p);
    } else if (p.mount_id != 0 && mount.mount_id != 0 && p.mount_id != mount.mount_id) {
      Add(Severity::kError, "mount.over", p.key,
          fmt::format("{}: something else is mounted over it: unpublish it, which undoes that, and "
                      "publish it again",
                      who));
    } else if (!p.dead.empty()) {
      Mountable(Add(Severity::kError, "mount.dead", p.key,
                    fmt::format("{}: its file system has ended: {}; it has to be restarted once it is "
                                "mounted again",
                                who, p.dead)),
                p);
    } else if (!p.hung.empty()) {
      // Its server may come back: nothing is repaired.
      Add(Severity::kError, "mount.hung", p.key,
          fmt::format("{}: its file system does not answer: {}", who, p.hung));
    } else if (!p.writes_refused.empty()) {
      Add(Severity::kError, "mount.read_only", p.key,
          fmt::format("{}: it refuses writes: {}", who, p.writes_refused));
    }
  }

  // The second mount, at the path that its file names.
  void Path(const PublicationRecord& p) {
    const std::string path = Printable(p.path.path, 512);
    if (!path.empty() && !p.path_mounted) {
      Add(p.path_error.empty() ? Severity::kInfo : Severity::kError, "path.missing", p.key,
          fmt::format("{}: published, and not mounted at {} yet{}{}", Describe(p.key), path,
                      p.path_error.empty() ? "" : ": ", p.path_error))
          .finding.path = path;
    } else if (!path.empty() && !p.path_unguarded.empty()) {
      Add(Severity::kInfo, "path.unguarded", p.key,
          fmt::format(
              "{}: the directory {} beneath the mount cannot be made immutable here ({}): while the volume "
              "is away, whatever writes to {} writes to the file system beneath it; let its users require "
              "the volume's berth-volume@.service",
              Describe(p.key), path, p.path_unguarded, path))
          .finding.path = path;
    }
    if (!p.path_made.path.empty() && p.path_made != p.path && !p.path_error.empty()) {
      Add(Severity::kWarning, "path.left", p.key,
          fmt::format("{}: still mounted at {}, where it is not wanted any more: {}", Describe(p.key),
                      Printable(p.path_made.path, 512), p.path_error))
          .finding.path = Printable(p.path_made.path, 512);
    }
  }

  // What deletes data, or lacks what the journal alone knew, is not mounted again unasked by a caller.
  void Mountable(Diagnosis& diagnosis, const PublicationRecord& p) {
    if (p.ephemeral || volume_.record.rebuilt || !volume_.plugin_problem.empty()) return;
    Repair(diagnosis, RepairKind::kMountAgain, "unpublish it through the plugin and publish it again");
  }

  void Progress() {
    const VolumeView& view = volume_.view;
    if (view.stuck) {
      Add(Severity::kError, "volume.stuck", {},
          fmt::format("{} does not return{}: {}", view.stuck->on,
                      view.stuck->pid == 0 ? "" : fmt::format(" (process {})", view.stuck->pid),
                      view.stuck->plugin_hangs ? "the plugin itself hangs, no file system does"
                                               : "the file system, or the plugin, does not answer"));
    } else if (view.awaiting_secrets) {
      Add(Severity::kWarning, "volume.awaiting_secrets", {},
          "a step has to be repeated, and its secrets were never written down");
    } else if (!Failing() && view.uncertain) {
      Add(Severity::kInfo, "volume.uncertain", {},
          fmt::format("a step's outcome is not known{}{}", view.last_error.empty() ? "" : ": ",
                      view.last_error));
    }
    Owed();
  }

  [[nodiscard]] std::string NextTry() const {
    const VolumeView& view = volume_.view;
    if (view.running.empty() && !view.next_retry_at) {
      return "it is not tried again by itself";
    }
    return WhatComesNext(view, volume_.at);
  }

  // What has failed and is not done yet. An error of something that has come to its end since is settled.
  bool Failing() {
    std::set<std::string> told;
    for (const PublicationRecord& p : volume_.record.publications) {
      if (p.state == PublicationState::kPublished || p.last_error.empty()) continue;
      if (p.BlockedBecause()) continue;
      Add(Severity::kWarning, "volume.failing", p.key,
          fmt::format("{}: not {} yet: {}; {}", Describe(p.key), Aim(p), p.last_error, NextTry()));
      told.insert(p.last_error);
    }
    const std::string& error = volume_.record.last_error;
    const std::string_view aim = VolumesAim();
    if (!error.empty() && !aim.empty() && !told.contains(error)) {
      Add(Severity::kWarning, volume_.view.still_in_use ? "volume.in_use" : "volume.failing", {},
          fmt::format("not {} yet: {}; {}", aim, error, NextTry()));
      told.insert(error);
    }
    return !told.empty();
  }
  static std::string_view Aim(const PublicationRecord& p) {
    if (p.state == PublicationState::kPublishing) return "published";
    return p.remount_after_undo ? "mounted again" : "unpublished";
  }
  // What is under way with the volume itself; empty: nothing.
  [[nodiscard]] std::string_view VolumesAim() const {
    const VolumeRecord& record = volume_.record;
    if (record.publications.empty()) return "released";
    switch (record.stage_state) {
      case StageState::kStaging:
        return "staged";
      case StageState::kUnstaging:
        return "unstaged";
      case StageState::kStaged:
        return record.stage_uncertain ? "staged for certain" : "";
      case StageState::kAbsent:
        return "";
    }
    return "";
  }

  void Owed() {
    const VolumeRecord& record = volume_.record;
    if (record.pending_expansion_bytes == 0) return;
    const bool at_it = !volume_.view.running.empty() && record.last_error.empty();
    Add(at_it ? Severity::kInfo : Severity::kWarning, "volume.expansion_pending", {},
        fmt::format("the node's part of growing it to {} is not done{}{}",
                    FormatSize(static_cast<uint64_t>(record.pending_expansion_bytes)),
                    record.last_error.empty() ? "" : ": ", record.last_error));
  }

  const VolumeEvidence& volume_;
  const std::string& tree_;
  std::vector<Diagnosis> found_;
};

Diagnosis OfNoVolume(Severity severity, std::string code, std::string key, std::string path,
                     std::string text) {
  Diagnosis diagnosis;
  diagnosis.key = std::move(key);
  diagnosis.finding.severity = severity;
  diagnosis.finding.code = std::move(code);
  diagnosis.finding.path = std::move(path);
  diagnosis.finding.text = std::move(text);
  return diagnosis;
}

// Mounts in the tree that are neither a staging path nor a target of anybody's.
void StrangeMounts(const Evidence& evidence, std::vector<Diagnosis>* found) {
  std::set<std::string> ours;
  for (const VolumeEvidence& volume : evidence.volumes) {
    ours.insert(volume.view.staging_path);
    for (const PublicationView& p : volume.view.publications) ours.insert(p.target_path);
  }
  for (const Mount& mount : evidence.mounts) {
    if (mount.target.size() <= evidence.tree.size() + 1 || ours.contains(mount.target)) continue;
    // What a plugin mounts inside its staging path is its own matter.
    const bool inside = std::ranges::any_of(evidence.volumes, [&mount](const VolumeEvidence& volume) {
      return !volume.view.staging_path.empty() && mount.target.starts_with(volume.view.staging_path + "/");
    });
    if (inside) continue;
    const std::string key =
        mount.target.substr(evidence.tree.size() + 1,
                            mount.target.find('/', evidence.tree.size() + 1) - evidence.tree.size() - 1);
    found->push_back(
        OfNoVolume(Severity::kWarning, "mount.orphan", key, mount.target,
                   fmt::format("{} ({}) is mounted here, and no publication accounts for it: left "
                               "alone; find out what uses it, and unmount it by hand",
                               Printable(mount.source, 256), Printable(mount.fs_type, 64))));
  }
}

void StrangeDirectories(const Evidence& evidence, std::vector<Diagnosis>* found) {
  for (const OrphanEvidence& orphan : evidence.orphans) {
    const std::string path = fmt::format("{}/{}", evidence.tree, orphan.name);
    const bool mounted = std::ranges::any_of(evidence.mounts, [&path](const Mount& mount) {
      return mount.target == path || mount.target.starts_with(path + "/");
    });
    Diagnosis diagnosis =
        OfNoVolume(Severity::kWarning, "directory.orphan", orphan.name, path,
                   fmt::format("not in the journal ({}): left alone{}", orphan.says,
                               orphan.has_identity && !mounted
                                   ? "; its plugin, or another process, has left something in it"
                                   : ""));
    if (!mounted && !orphan.has_identity) {
      diagnosis.repair = RepairKind::kRemoveDirectory;
      diagnosis.finding.repair = "remove it, if it is empty";
    }
    if (!mounted) {
      diagnosis.finding.advice =
          fmt::format("mv -T {} /var/tmp/berth-{}", ShellQuoted(path), ShellQuoted(orphan.name));
    }
    found->push_back(std::move(diagnosis));
  }
}

void Tree(const Evidence& evidence, std::vector<Diagnosis>* found) {
  if (!evidence.unprotected.empty()) {
    found->push_back(
        OfNoVolume(Severity::kInfo, "tree.unprotected", "", evidence.tree,
                   fmt::format("before berthd has started, files can be put into this directory, and "
                               "would be hidden once it has: {}",
                               evidence.unprotected)));
  }
  for (const Leftover& leftover : evidence.leftovers) {
    const bool known =
        std::ranges::find(evidence.volumes, leftover.name, &VolumeEvidence::key) != evidence.volumes.end();
    if (known) continue;
    found->push_back(OfNoVolume(Severity::kWarning, "tree.leftover", leftover.name,
                                fmt::format("{}/{}", evidence.tree, leftover.name),
                                WhatIsLeft(leftover, evidence.tree)));
  }
}

}  // namespace

std::string LostWithJournal(const VolumeRecord& said, const VolumeRecord& record) {
  const auto of_volume = [](const VolumeRecord& r) {
    return std::tuple(r.driver_name, r.node_id, r.stages, r.sent_mode, r.use.access_mode, r.use.access_type,
                      r.use.fs_type, r.publish_context.has_value());
  };
  if (of_volume(said) != of_volume(record)) return "it says something else than the journal";
  // It may say so although the record does not: of the volume's last use.
  if (record.still_in_use && !said.still_in_use)
    return "it does not say that its file system may still be in use";
  const auto of_publication = [](const PublicationRecord& p) {
    return std::tie(p.readonly, p.origin, p.ephemeral);
  };
  for (const PublicationRecord& p : record.publications) {
    if (p.state != PublicationState::kPublished) continue;
    const PublicationRecord* const its = said.Find(p.key);
    if (its == nullptr) return fmt::format("it does not name {}", Describe(p.key));
    if (of_publication(*its) != of_publication(p)) {
      return fmt::format("of {} it says something else than the journal", Describe(p.key));
    }
  }
  return {};
}

std::vector<Diagnosis> DiagnoseVolume(const VolumeEvidence& volume, const std::string& tree) {
  return VolumeExamination(volume, tree).Run();
}

std::vector<Diagnosis> Diagnose(const Evidence& evidence) {
  std::vector<Diagnosis> found;
  for (const std::string& problem : evidence.problems) {
    found.push_back(OfNoVolume(Severity::kWarning, "node.problem", "", "", problem));
  }
  for (const VolumeEvidence& volume : evidence.volumes) {
    std::vector<Diagnosis> some = DiagnoseVolume(volume, evidence.tree);
    found.insert(found.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  StrangeMounts(evidence, &found);
  StrangeDirectories(evidence, &found);
  Tree(evidence, &found);
  std::vector<Diagnosis> sorted;
  for (const Severity severity : {Severity::kError, Severity::kWarning, Severity::kInfo}) {
    for (Diagnosis& diagnosis : found) {
      if (diagnosis.finding.severity == severity) sorted.push_back(std::move(diagnosis));
    }
  }
  return sorted;
}

std::string WhatComesNext(const VolumeView& view, WallTime now) {
  if (!view.running.empty()) {
    const Duration age =
        view.running_since ? std::chrono::duration_cast<Duration>(now - *view.running_since) : Duration(0);
    return fmt::format("{} runs, since {}", view.running, Seconds(age));
  }
  if (view.next_retry_at) {
    const auto wait = std::chrono::duration_cast<Duration>(*view.next_retry_at - now);
    return wait <= Duration(0) ? std::string("it is tried again now")
                               : fmt::format("it is tried again in {}", Seconds(wait));
  }
  if (!AdviceFor(view).empty()) return "nothing, until that is done";
  return "nothing is to be done";
}

}  // namespace berth
