// Every will in every state of what is there.
#include "declared/declared.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace berth {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Will = DeclaredEntry::Will;
using Action = DeclaredAction;

const TimePoint kNow = TimePoint{} + std::chrono::hours(1);

DeclaredUse Use(const std::string& volume = "v1") {
  DeclaredUse use;
  use.request.plugin_id = "nfs";
  use.request.volume_id = volume;
  use.request.consumer = "declared/data";
  use.request.origin = Origin::kDeclared;
  use.mount_digest = MountDigest(use.request, use.attach);
  return use;
}

DeclaredRecord RecordOf(const DeclaredUse& use) {
  DeclaredRecord record;
  record.set_file("data.toml");
  record.set_plugin("nfs");
  record.set_volume_id(use.request.volume_id);
  record.set_consumer(use.request.consumer);
  record.set_name(use.request.name);
  record.set_plugin_id("nfs");
  record.set_mount_digest(use.mount_digest);
  return record;
}

DeclaredEntry Wanted() {
  DeclaredEntry entry;
  entry.use = Use();
  return entry;
}
DeclaredEntry Begun() {
  DeclaredEntry entry = Wanted();
  entry.record = RecordOf(*entry.use);
  return entry;
}
DeclaredEntry Withdrawn() {
  DeclaredEntry entry = Begun();
  entry.will = Will::kWithdrawn;
  entry.use.reset();
  return entry;
}

DeclaredFacts Ready() {
  DeclaredFacts facts;
  facts.plugin_ready = true;
  facts.controller_ready = true;
  return facts;
}
DeclaredFacts Published() {
  DeclaredFacts facts = Ready();
  facts.publication = PublicationState::kPublished;
  facts.declared = true;
  facts.held_by = "what is left of it";
  return facts;
}

TEST(DeclaredTest, TheWayThereAndBack) {
  struct Row {
    std::string what;
    DeclaredEntry entry;
    DeclaredFacts facts;
    Action action;
    std::string state;  // its beginning
  };
  const auto with = [](auto value, const auto& change) {
    change(value);
    return value;
  };
  const auto attach_needed = [](DeclaredFacts& facts) { facts.needs_attach = true; };
  const auto leaving = [](DeclaredFacts& facts) { facts.leaving = "berthd is stopping"; };
  const auto sent = [](DeclaredEntry& entry) {
    entry.record->set_attach_sent(true);
    entry.record->set_node_id("n1");
  };
  const auto attached = [](DeclaredEntry& entry) {
    entry.record->set_attach_sent(true);
    entry.record->mutable_publish_context();
  };
  const auto state = [](PublicationState publication) {
    return [publication](DeclaredFacts& facts) {
      facts.publication = publication;
      facts.declared = true;
    };
  };
  DeclaredFacts not_ready;
  not_ready.plugin_why = "plugin nfs is starting";
  not_ready.controller_why = "plugin nfs is starting";
  const DeclaredFacts gone;
  const std::vector<Row> rows = {
      // There.
      {"another caller's publication", Begun(),
       with(Published(), [](DeclaredFacts& facts) { facts.declared = false; }), Action::kWait,
       "waiting: it is published by a request"},
      {"plugin not ready", Wanted(), not_ready, Action::kWait, "waiting: plugin nfs is starting"},
      {"nothing is begun before it is recorded", Wanted(), Ready(), Action::kRemember, "publishing"},
      {"begun, plugin not ready", Begun(), not_ready, Action::kWait, "waiting: plugin nfs"},
      {"no attach needed", Begun(), Ready(), Action::kPublish, "publishing"},
      {"attach first", Begun(), with(Ready(), attach_needed), Action::kAttach, "attaching"},
      {"the answer was never seen", with(Begun(), sent), with(Ready(), attach_needed), Action::kAttach,
       "attaching"},
      {"attached", with(Begun(), attached), with(Ready(), attach_needed), Action::kPublish, "publishing"},
      {"no controller", Begun(),
       with(with(Ready(), attach_needed),
            [](DeclaredFacts& facts) {
              facts.controller_ready = false;
              facts.controller_why = "no plugin of this driver";
            }),
       Action::kWait, "waiting: the volume must be attached: no plugin of this driver"},
      {"another file's attach is under way", Begun(),
       with(with(Ready(), attach_needed), [](DeclaredFacts& facts) { facts.attach_busy = true; }),
       Action::kWait, "waiting: the volume is being attached"},
      {"the file wants no attach", with(Begun(), [](DeclaredEntry& entry) { entry.use->attach = false; }),
       with(Ready(), attach_needed), Action::kPublish, "publishing"},
      {"the file wants it", with(Begun(), [](DeclaredEntry& entry) { entry.use->attach = true; }), Ready(),
       Action::kAttach, "attaching"},
      {"the file says how it is attached",
       with(Begun(), [](DeclaredEntry& entry) { entry.use->request.publish_context.emplace(); }),
       with(Ready(), attach_needed), Action::kPublish, "publishing"},
      {"ephemeral volumes are not attached",
       with(Begun(), [](DeclaredEntry& entry) { entry.use->request.ephemeral = true; }),
       with(Ready(), attach_needed), Action::kPublish, "publishing"},
      {"joins what the mounter does already", Begun(), with(Ready(), state(PublicationState::kPublishing)),
       Action::kPublish, "publishing"},
      {"follows what is being undone", Begun(), with(Ready(), state(PublicationState::kUnpublishing)),
       Action::kPublish, "publishing"},
      {"published", Begun(), Published(), Action::kNothing, "published"},
      {"published, though its plugin is away", Begun(),
       with(Published(), [](DeclaredFacts& facts) { facts.plugin_ready = false; }), Action::kNothing,
       "published"},
      {"published, and its record was lost", Wanted(), Published(), Action::kRemember, "publishing"},
      {"held by the mounter until it is asked for", Begun(),
       with(Published(), [](DeclaredFacts& facts) { facts.blocked = "the node was restarted"; }),
       Action::kPublish, "publishing"},
      {"the file says something that takes no mount",
       with(Begun(), [](DeclaredEntry& entry) { entry.tell_anew = true; }), Published(), Action::kPublish,
       "publishing"},
      {"released by others", with(Begun(), [](DeclaredEntry& entry) { entry.was_published = true; }), Ready(),
       Action::kWait, "waiting: released, by hand"},
      {"the file cannot be read",
       with(Begun(),
            [](DeclaredEntry& entry) {
              entry.will = Will::kKept;
              entry.use.reset();
            }),
       Ready(), Action::kWait, "left as it is"},
      {"nothing is begun once berthd is stopping", Wanted(), with(Ready(), leaving), Action::kWait,
       "waiting: berthd is stopping"},
      {"nor attached", Begun(), with(with(Ready(), attach_needed), leaving), Action::kWait,
       "waiting: berthd is stopping"},
      {"nor published", Begun(), with(Ready(), leaving), Action::kWait, "waiting: berthd is stopping"},
      {"what is published stays", Begun(), with(Published(), leaving), Action::kNothing, "published"},
      // Back.
      {"released while berthd is stopping", Withdrawn(), with(Published(), leaving), Action::kUnpublish,
       "releasing"},
      {"detached while berthd is stopping", with(Withdrawn(), attached), with(Ready(), leaving),
       Action::kDetach, "detaching"},
      {"its file has gone", Withdrawn(), Published(), Action::kUnpublish, "releasing"},
      {"in the middle of it", Withdrawn(), with(Ready(), state(PublicationState::kPublishing)),
       Action::kUnpublish, "releasing"},
      {"although the plugin is away: the mounter keeps at it", Withdrawn(),
       with(Published(), [](DeclaredFacts& facts) { facts.plugin_ready = false; }), Action::kUnpublish,
       "releasing"},
      {"not attached", Withdrawn(), gone, Action::kForget, "releasing"},
      {"attached, perhaps", with(Withdrawn(), sent), Ready(), Action::kDetach, "detaching"},
      {"attached", with(Withdrawn(), attached), Ready(), Action::kDetach, "detaching"},
      {"attached, no controller", with(Withdrawn(), attached), not_ready, Action::kWait,
       "releasing: to be detached: plugin nfs is starting"},
      {"attached, and others use the volume", with(Withdrawn(), attached),
       with(Ready(), [](DeclaredFacts& facts) { facts.held_by = "web"; }), Action::kWait,
       "releasing: to be detached once web has left"},
      {"attached, and another file declares it attached", with(Withdrawn(), attached),
       with(Ready(), [](DeclaredFacts& facts) { facts.attached_for_another = true; }), Action::kForget,
       "releasing"},
      {"attached, and being attached by another file", with(Withdrawn(), attached),
       with(Ready(), [](DeclaredFacts& facts) { facts.attach_busy = true; }), Action::kWait, "releasing"},
      {"a caller's own publication of the same name", Withdrawn(),
       with(Published(), [](DeclaredFacts& facts) { facts.declared = false; }), Action::kForget, "releasing"},
      {"the same, attached", with(Withdrawn(), attached),
       with(Published(), [](DeclaredFacts& facts) { facts.declared = false; }), Action::kWait, "releasing"},
      {"nothing is recorded", with(Withdrawn(), [](DeclaredEntry& entry) { entry.record.reset(); }), gone,
       Action::kGone, "released"},
      {"declared, and its record was lost",
       with(Withdrawn(), [](DeclaredEntry& entry) { entry.record.reset(); }), Published(), Action::kUnpublish,
       "releasing"},
      // A file that says another mount now.
      {"changed, published", with(Begun(), [](DeclaredEntry& entry) { entry.record->set_mount_digest("x"); }),
       Published(), Action::kUnpublish, "releasing: its file was changed"},
      {"changed, released", with(Begun(), [](DeclaredEntry& entry) { entry.record->set_mount_digest("x"); }),
       gone, Action::kForget, "releasing: its file was changed"},
  };
  for (const Row& row : rows) {
    const DeclaredStep step = NextStep(row.entry, row.facts, kNow);
    EXPECT_EQ(step.action, row.action) << row.what << ": " << step.state;
    EXPECT_THAT(step.state, StartsWith(row.state)) << row.what;
    EXPECT_FALSE(step.at.has_value()) << row.what;
    // After a failure the same is waited for, and what is only waited for is as it was.
    DeclaredEntry later = row.entry;
    later.not_before = kNow + std::chrono::seconds(5);
    const DeclaredStep delayed = NextStep(later, row.facts, kNow);
    const bool acts =
        row.action != Action::kWait && row.action != Action::kNothing && row.action != Action::kGone;
    EXPECT_EQ(delayed.action, acts ? Action::kWait : row.action) << row.what;
    if (acts) {
      EXPECT_EQ(delayed.at, later.not_before) << row.what;
      EXPECT_THAT(delayed.state, HasSubstr("retrying: ")) << row.what;
    }
    EXPECT_EQ(NextStep(later, row.facts, later.not_before), step) << row.what;
  }
}

// What each event makes of a use that its file wants, wherever it stands.
TEST(DeclaredTest, Fault45ReleasedByHandItStaysReleasedUntilItIsRequested) {
  constexpr const char* kBoot = "boot-2";
  struct Place {
    std::string what;
    DeclaredFacts facts;
  };
  const auto facts = [](std::optional<PublicationState> state, bool leaving) {
    DeclaredFacts made = Ready();
    made.publication = state;
    made.declared = state.has_value();
    made.being_unpublished = leaving;
    return made;
  };
  const std::vector<Place> places = {
      {"absent", facts(std::nullopt, false)},
      {"publishing", facts(PublicationState::kPublishing, false)},
      {"published", facts(PublicationState::kPublished, false)},
      {"leaving", facts(PublicationState::kUnpublishing, true)},
      {"being repaired", facts(PublicationState::kUnpublishing, false)},
  };
  for (const Place& place : places) {
    for (const bool was_published : {false, true}) {
      for (const bool released : {false, true}) {
        for (const std::string noted : {"", "boot-1", kBoot}) {
          DeclaredEntry entry = Begun();
          entry.boot_id = kBoot;
          entry.was_published = was_published;
          entry.released = released;
          entry.record->set_released_in_boot(noted);
          const std::string what = place.what + (was_published ? ", was published" : "") +
                                   (released ? ", released" : "") + ", noted: " + noted;
          const bool gone = place.what == "absent" || place.what == "leaving";
          const bool stays = place.what != "published" && (released || (was_published && gone));
          EXPECT_EQ(IsReleased(entry, place.facts), stays) << what;
          const DeclaredStep step = NextStep(entry, place.facts, kNow);
          if (noted != (stays ? kBoot : "")) {
            EXPECT_EQ(step.action, Action::kNoteRelease) << what;
            continue;
          }
          if (stays) {
            EXPECT_EQ(step.action, Action::kWait) << what;
            EXPECT_THAT(step.state, HasSubstr("released, by hand")) << what;
          } else {
            EXPECT_EQ(step.action, place.what == "published" ? Action::kNothing : Action::kPublish) << what;
          }
        }
      }
    }
  }
  // Another caller's publication of the same name is not its release.
  DeclaredEntry entry = Begun();
  entry.was_published = true;
  DeclaredFacts others = facts(PublicationState::kUnpublishing, true);
  others.declared = false;
  EXPECT_FALSE(IsReleased(entry, others));
  // Its file goes, or says another mount: that needs no reload of its own.
  entry.released = true;
  entry.record->set_mount_digest("x");
  EXPECT_EQ(NextStep(entry, facts(std::nullopt, false), kNow).action, Action::kForget);
  DeclaredEntry withdrawn = Withdrawn();
  withdrawn.released = true;
  EXPECT_EQ(NextStep(withdrawn, facts(std::nullopt, false), kNow).action, Action::kForget);
}

TEST(DeclaredTest, DigestTellsWhatTakesAnotherMount) {
  const DeclaredUse base = Use();
  const auto differs = [&](const std::function<void(PublishRequest&)>& change) {
    PublishRequest request = base.request;
    change(request);
    return MountDigest(request, base.attach) != base.mount_digest;
  };
  EXPECT_FALSE(differs([](PublishRequest&) {}));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.plugin_id = "x"; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.volume_id = "x"; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.consumer = "x"; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.name = "x"; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.readonly = true; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.ephemeral = true; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.use.fs_type = "xfs"; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.use.access_type = AccessType::kBlock; }));
  EXPECT_TRUE(differs([](PublishRequest& request) {
    request.use.access_mode = ::csi::v1::VolumeCapability::AccessMode::MULTI_NODE_READER_ONLY;
  }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.use.mount_flags = {"noatime"}; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.use.volume_mount_group = "1"; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.volume_context = {{"a", "b"}}; }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.publish_context.emplace(); }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.permissions.set_mode(0700); }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.permissions.set_owner(0); }));
  EXPECT_TRUE(differs([](PublishRequest& request) { request.permissions.set_selinux_label("x"); }));
  EXPECT_NE(MountDigest(base.request, true), base.mount_digest);
  EXPECT_NE(MountDigest(base.request, false), MountDigest(base.request, true));
  // These take none.
  EXPECT_FALSE(differs([](PublishRequest& request) { request.remount = !request.remount; }));
  EXPECT_FALSE(differs([](PublishRequest& request) { request.secrets_reference.set_file("/etc/secret"); }));
  // One list is not another that reads the same.
  PublishRequest one = base.request;
  one.use.mount_flags = {"a", "b"};
  PublishRequest other = base.request;
  other.use.mount_flags = {"a;1:b"};
  EXPECT_NE(MountDigest(one, {}), MountDigest(other, {}));
}

TEST(DeclaredPathTest, ItIsPublishedOnceItIsMountedAtItsPath) {
  const DeclaredEntry entry = Begun();
  DeclaredFacts facts = Published();
  EXPECT_EQ(NextStep(entry, facts, kNow).action, Action::kNothing);
  EXPECT_TRUE(IsPublished(entry, facts));
  facts.path_pending = true;
  EXPECT_EQ(NextStep(entry, facts, kNow).action, Action::kPublish);
  EXPECT_FALSE(IsPublished(entry, facts));
  // The plugin is not needed for it.
  facts.plugin_ready = false;
  EXPECT_EQ(NextStep(entry, facts, kNow).action, Action::kPublish);
}

TEST(DeclaredPathTest, WhatLeavesOrIsLostIsNotPublished) {
  EXPECT_FALSE(IsPublished(Withdrawn(), Published()));
  DeclaredEntry kept = Begun();
  kept.will = Will::kKept;
  kept.use.reset();
  EXPECT_TRUE(IsPublished(kept, Published())) << "its file was broken since, and it is there still";
  DeclaredFacts lost = Published();
  lost.lost = true;
  EXPECT_FALSE(IsPublished(Begun(), lost));
  DeclaredEntry changed = Begun();
  changed.record->set_mount_digest("another");
  EXPECT_FALSE(IsPublished(changed, Published()));
  EXPECT_FALSE(IsPublished(Begun(), Ready()));
}

}  // namespace
}  // namespace berth
