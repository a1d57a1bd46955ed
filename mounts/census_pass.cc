#include "mounts/census_pass.h"

#include <fcntl.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mountinfo_line.h"
#include "base/unique_fd.h"
#include "mounts/census_host.h"
#include "mounts/census_mounts.h"
#include "mounts/census_users.h"

namespace berth {
namespace {

// What was written: each hold once, and no more of one object than count.
class Writer {
 public:
  Writer(size_t objects, const CensusWriter& write) : holds_(objects), write_(write) {}

  void Report(Hold hold) {
    if (holds_[hold.object] >= kHoldsPerObject) return;
    for (std::string* const name : {&hold.where, &hold.keeper}) {
      if (name->size() > kHoldNameBytes) name->resize(kHoldNameBytes);
    }
    if (!seen_.emplace(hold.object, hold.kind, hold.pid, hold.where).second) return;
    ++holds_[hold.object];
    write_({.holds = {std::move(hold)}});
  }
  void ReportElsewhere(size_t object) {
    if (elsewhere_.insert(object).second) write_({.elsewhere = {object}});
  }
  [[nodiscard]] bool Held(size_t object) const { return holds_[object] > 0; }

 private:
  std::vector<size_t> holds_;
  std::set<std::tuple<size_t, HoldKind, pid_t, std::string>> seen_;
  std::set<size_t> elsewhere_;
  const CensusWriter& write_;
};

class Pass {
 public:
  Pass(const CensusQuestion& question, CensusHost& host, int own_namespace, Writer& writer)
      : question_(question), host_(host), mounts_(host, own_namespace), writer_(writer) {}

  // Empty, or why something may have been missed.
  std::string Take() {
    std::string incomplete = mounts_.Read(question_.kernel);
    if (!incomplete.empty()) return incomplete;
    for (size_t i = 0; i < mounts_.mounts().size(); ++i) by_device_[mounts_.mounts()[i].device].push_back(i);
    for (size_t i = 0; i < question_.objects.size(); ++i) {
      if (!question_.objects[i].block_device) JudgeMounts(i);
    }
    ReportNamespaces();
    CensusUsers users(host_, question_, mounts_, std::move(kept_),
                      [this](const Hold& hold) { writer_.Report(hold); });
    incomplete = users.Look();
    for (const std::string& why : {incomplete, mounts_.unknown()}) {
      if (!why.empty()) return why;
    }
    return host_.missed();
  }

 private:
  // Which of an object's mounts are what.
  struct Judged {
    std::vector<size_t> ours;
    std::vector<size_t> theirs;  // others' recorded ones, and those from before
    std::vector<size_t> rest;
  };

  void JudgeMounts(size_t object) {
    Judged judged = Sort(object);
    if (!judged.theirs.empty()) writer_.ReportElsewhere(object);
    const auto unmounts_of = [this](const std::vector<size_t>& mounts) {
      std::set<CensusMounts::Propagation> unmounts;
      for (const size_t mount : mounts) {
        if (auto unmount = mounts_.UnmountOf(mount)) unmounts.insert(*std::move(unmount));
      }
      return unmounts;
    };
    if (!judged.rest.empty()) {
      const auto with_ours = unmounts_of(judged.ours);
      const auto with_theirs = unmounts_of(judged.theirs);
      for (const size_t mount : judged.rest) {
        if (mounts_.GoesWith(mount, with_ours)) {
          judged.ours.push_back(mount);
        } else if (!mounts_.GoesWith(mount, with_theirs)) {
          ReportMount(object, mount);
          judged.ours.push_back(mount);  // what is open on it counts, too
        }
      }
    }
    if (!question_.objects[object].users) return;
    for (const size_t mount : judged.ours) kept_[mount].push_back(object);
  }

  // What lies on the object's directory, or in it.
  std::vector<size_t> MountsOn(const CensusObject& object) {
    std::vector<size_t> mounts;
    for (size_t i = 0; i < mounts_.mounts().size(); ++i) {
      const auto beneath = mounts_.ById(mounts_.mounts()[i].parent);
      if (!beneath.has_value() || mounts_.mounts()[*beneath].device != object.device) continue;
      const std::string directory = mounts_.DirectoryOf(i);
      if (!directory.empty() && IsAtOrBeneath(directory, object.root)) mounts.push_back(i);
    }
    return mounts;
  }

  // Whether a mount with the object's device number is one of its file system and shows something of its
  // directory, which has these names.
  bool IsOf(size_t index, const MountText& text, const std::set<std::string>& roots) {
    const CensusObject& object = question_.objects[index];
    // Such numbers are used again as soon as they are free.
    const bool another = object.source_fingerprint != 0 && !text.source.empty() &&
                         SourceFingerprint(text.source) != object.source_fingerprint;
    if (major(object.device) == 0 && (another || text.fs_type != object.fs_type)) {
      writer_.ReportElsewhere(index);
      return false;
    }
    const bool named =
        object.source.empty() || text.source.empty() || IsAtOrBeneath(text.source, object.source);
    const auto beneath = [&text](const std::string& root) { return IsAtOrBeneath(text.root, root); };
    if (named && std::ranges::any_of(roots, beneath)) return true;
    writer_.ReportElsewhere(index);
    return false;
  }

  static bool IsEarlier(const CensusObject& object, const ListedMount& mount, const MountText& text) {
    const uint64_t fingerprint = MountFingerprint(mount.id, mount.device, text.root, text.target);
    return std::ranges::find(object.earlier, fingerprint) != object.earlier.end();
  }

  Judged Sort(size_t index) {
    const CensusObject& object = question_.objects[index];
    const std::set<uint64_t> ours(object.ours.begin(), object.ours.end());
    const std::vector<size_t> candidates = object.place ? MountsOn(object) : by_device_[object.device];
    // The directory may have another name by now: its own mounts show it. One that shows more than the
    // directory, the staging of a larger file system for instance, says nothing about that.
    std::set<std::string> roots{object.root};
    for (const size_t mount : candidates) {
      // An id that is reused may be another mount's once its own ones are gone.
      const bool own = ours.contains(mounts_.mounts()[mount].id) && (mounts_.unique_ids() || object.staged);
      if (!own) continue;
      const std::string& root = mounts_.Text(mount).root;
      if (!root.empty() && !IsAtOrBeneath(object.root, root)) roots.insert(root);
    }
    Judged judged;
    for (const size_t mount : candidates) {
      const ListedMount& listed = mounts_.mounts()[mount];
      const MountText& text = mounts_.Text(mount);
      if (text.root.empty()) continue;  // it has gone
      if (!object.place && !IsOf(index, text, roots)) continue;
      const bool unique = mounts_.unique_ids();
      const bool here = listed.mount_namespace == mounts_.own();
      const bool in_place = here && IsAtOrBeneath(text.target, object.directory);
      // Ids that are reused are believed only in our own namespace, and those of others only in the tree: the
      // recorded mount may have gone, and a foreign bind of this volume may have its id by now.
      const bool own = (unique || here) && ours.contains(listed.id);
      const bool in_tree =
          here && IsAtOrBeneath(text.target, object.directory.substr(0, object.directory.rfind('/')));
      const bool recorded = (unique || in_tree) && recorded_.contains(listed.id);
      const bool before = unique ? listed.id < object.before : here && IsEarlier(object, listed, text);
      if (object.staged && (own || in_place)) {
        judged.ours.push_back(mount);
      } else if (!own && (recorded || before)) {
        judged.theirs.push_back(mount);
      } else {
        judged.rest.push_back(mount);
      }
    }
    return judged;
  }

  // In our namespace each mount; of another one the first.
  void ReportMount(size_t object, size_t mount) {
    const size_t mount_namespace = mounts_.mounts()[mount].mount_namespace;
    const MountText& text = mounts_.Text(mount);
    if (mount_namespace == mounts_.own()) {
      writer_.Report({.object = object, .where = text.target});
      return;
    }
    holding_[mount_namespace].try_emplace(object, mount);
  }

  // Names each namespace by a process in it.
  void ReportNamespaces() {
    if (holding_.empty()) return;
    std::map<uint64_t, pid_t> processes;  // by the namespace's inode
    for (const auto& [mount_namespace, mounts] : holding_) {
      processes.emplace(mounts_.namespaces()[mount_namespace].inode, 0);
    }
    size_t left = processes.size();
    host_.ForEachNumber("proc", [&](pid_t pid) {
      const std::string threads = "proc/" + std::to_string(pid) + "/task";
      host_.ForEachNumber(threads, [&](pid_t thread) {
        const std::string task = threads + "/" + std::to_string(thread);
        const auto wanted = processes.find(NamespaceInode(host_.Link(task + "/ns/mnt")));
        if (wanted == processes.end() || wanted->second != 0) return left > 0;
        // Another census may be passing through.
        if (host_.Text(task + "/comm").starts_with("berth-mount-hel")) return true;
        wanted->second = pid;
        return --left > 0;
      });
      return left > 0;
    });
    for (const auto& [mount_namespace, mounts] : holding_) {
      const uint64_t inode = mounts_.namespaces()[mount_namespace].inode;
      const pid_t pid = processes.at(inode);
      for (const auto& [object, mount] : mounts) {
        writer_.Report({.object = object,
                        .kind = HoldKind::kNamespace,
                        .pid = pid,
                        .where = mounts_.Text(mount).target,
                        .keeper = pid == 0 ? KeeperOf(inode) : ""});
      }
    }
  }

  // The file that keeps a namespace without a process; else its name.
  std::string KeeperOf(uint64_t inode) {
    const std::string name = "mnt:[" + std::to_string(inode) + "]";
    for (size_t i = 0; i < mounts_.mounts().size(); ++i) {
      if (mounts_.mounts()[i].nsfs && mounts_.Text(i).root == name) return mounts_.Text(i).target;
    }
    return name;
  }

  const CensusQuestion& question_;
  CensusHost& host_;
  CensusMounts mounts_;
  Writer& writer_;
  const std::set<uint64_t> recorded_{question_.recorded.begin(), question_.recorded.end()};
  std::unordered_map<dev_t, std::vector<size_t>> by_device_;
  KeptMounts kept_;
  std::map<size_t, std::map<size_t, size_t>> holding_;  // by namespace and object: a mount
};

}  // namespace

void TakeCensus(const CensusQuestion& question, const CensusWriter& write) {
  CensusHost host;
  const UniqueFd own = host.Open("proc/self/ns/mnt");
  if (!own.valid()) {
    write({.incomplete = "its own mount namespace could not be opened"});
    return;
  }
  Writer writer(question.objects.size(), write);
  std::string incomplete;
  for (int pass = 0; pass < 2 && incomplete.empty(); ++pass) {
    bool needed = pass == 0;
    for (size_t i = 0; i < question.objects.size(); ++i) {
      needed = needed || (question.objects[i].users && !writer.Held(i));
    }
    if (!needed) break;
    Pass taken(question, host, own.get(), writer);
    incomplete = taken.Take();
  }
  write({.incomplete = incomplete});
}

std::optional<CensusAnswer> CensusOfMounts(const CensusQuestion& question) {
  const UniqueFd own(open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  if (!own.valid() || question.kernel != KernelAs::kThis || !MayListNamespaces(own.get()))
    return std::nullopt;
  CensusAnswer answer;
  TakeCensus(question, [&answer](const CensusAnswer& part) { answer.Add(part); });
  return answer;
}

}  // namespace berth
