// For tests: waits for the events of mounts that other programs change, and restarts the node.
#pragma once

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <string>

#include "journal/journal.h"
#include "mounter/testing/mounter_test_base.h"
#include "mounter/volume_record.h"
#include "mounter/volume_types.h"
#include "mounts/mount_table.h"

namespace berth {

class MounterReconcileTest : public MounterTestBase {
 protected:
  [[nodiscard]] bool WaitForEvent(const std::string& type, size_t times = 1) {
    return loop_.RunUntil([&] { return CountEvents(type) >= times; });
  }
  [[nodiscard]] size_t CountEvents(const std::string& type) const {
    return static_cast<size_t>(std::ranges::count(EventTypes(), type));
  }
  [[nodiscard]] std::string LastMessage(const std::string& type) const {
    std::string message;
    for (const Event& event : events_.After(0, 10'000).events) {
      if (event.type == type) message = event.message;
    }
    return message;
  }

  // As the end of the node: no mount is left, and the rows are of another boot. The plugin keeps its books.
  void CloseAndReboot() {
    Close();
    const std::string tree = options_.state_dir + "/volumes";
    auto mounts = MountsBeneath(tree, 1000);
    ASSERT_TRUE(mounts.ok()) << mounts.status();
    std::ranges::reverse(*mounts);
    for (const Mount& mount : *mounts) {
      ASSERT_EQ(umount2(mount.target.c_str(), MNT_DETACH), 0) << mount.target;
    }
    EditRows([](VolumeRecord& record) { record.boot_id = "00000000-0000-0000-0000-000000000000"; });
  }

  template <class Edit>
  void EditRows(Edit edit) {
    auto journal = Journal::Open(loop_.executor(), {.path = options_.state_dir + "/journal.db"});
    ASSERT_TRUE(journal.ok()) << journal.status();
    for (const auto& [key, row] : (*journal)->TakeLoaded()) {
      auto record = DecodeRecord(row);
      ASSERT_TRUE(record.ok()) << record.status();
      edit(*record);
      ASSERT_EQ(loop_.Run((*journal)->Put(key, EncodeRecord(*record))), absl::OkStatus());
    }
  }

  [[nodiscard]] bool WaitPublished(const std::string& volume = "v1") {
    return loop_.RunUntil([&] {
      const VolumeView view = View(volume);
      return !view.publications.empty() && !view.uncertain &&
             std::ranges::all_of(view.publications, [](const PublicationView& p) {
               return p.state == PublicationState::kPublished;
             });
    });
  }
};

}  // namespace berth
