// What does not fit together on this node: the records compared with their rows, their directories, the
// kernel's mounts and the plugins.
//
// Pure: the facts are gathered, and repairs performed, in mounter_examine.cc.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mounter/leftovers.h"
#include "mounter/recovery.h"
#include "mounter/volume_record.h"
#include "mounter/volume_types.h"
#include "mounts/mount_table.h"

namespace berth {

struct VolumeEvidence {
  std::string key;  // of the journal, and of the directory
  VolumeRecord record;
  VolumeView view;
  bool in_journal = false;       // the row on the disk says what the record says
  std::string identity_problem;  // why its identity file says nothing, or something else; empty: it is right
  bool directory_there = true;   // in the tree
  std::map<PublicationKey, ShownMount> targets;  // of those that are published
  std::string plugin_problem;                    // why its plugin is not at hand; empty: it is
  std::optional<Leftover> leftover;              // of its directory beneath the mount of the tree
  WallTime at;                                   // when all this was so
};

// A directory in the tree that no record accounts for.
struct OrphanEvidence {
  std::string name;
  std::string says;  // what its identity file says, for people
  bool has_identity = false;
};

struct Evidence {
  std::string tree;
  // Why files can be put into the directory beneath the tree's mount while berthd has not started; empty:
  // they cannot.
  std::string unprotected;
  std::vector<Leftover> leftovers;  // beneath the tree's mount
  std::vector<VolumeEvidence> volumes;
  std::vector<OrphanEvidence> orphans;
  std::vector<Mount> mounts;  // beneath the tree
  std::vector<std::string> problems;
};

enum class RepairKind {
  kNone,             // only a person can
  kWriteRow,         // the record is written into the journal again
  kWriteIdentity,    // and so is its identity file
  kMountAgain,       // VolumeActor::Repair
  kRemoveDirectory,  // rmdir, while it is empty
};

struct Diagnosis {
  Finding finding;
  RepairKind repair = RepairKind::kNone;
  std::string key;  // the volume's, or the directory's name
  PublicationKey publication;
};

// What an identity file that says `said` would lose of `record`, should the journal be lost; empty: nothing.
// Of its publications those that are published are compared: the others come or go.
[[nodiscard]] std::string LostWithJournal(const VolumeRecord& said, const VolumeRecord& record);

// Of one volume, without mounts that no request made.
[[nodiscard]] std::vector<Diagnosis> DiagnoseVolume(const VolumeEvidence& volume, const std::string& tree);
// Of everything: the errors first.
[[nodiscard]] std::vector<Diagnosis> Diagnose(const Evidence& evidence);

// What berthd does next for a volume, in a sentence. What a person does is AdviceFor's.
[[nodiscard]] std::string WhatComesNext(const VolumeView& view, WallTime now);

}  // namespace berth
