// berthd's own writes (FAULTS rows 16, 18 and 23) on a whole node: killed at every one of them, syncs that
// fail, and what an older or a newer berthd has written. The journal's own cases: journal/journal_test.cc,
// journal/journal_power_cut_test.cc.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>

#include "base/safe_path.h"
#include "tests/harness/fault_test.h"
#include "tests/harness/host_faults.h"

namespace berth {
namespace {

using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using std::chrono::seconds;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class FaultWriteTest : public FaultTest {
 protected:
  FaultWriteTest() : host_(node_) {}
  [[nodiscard]] std::string Journal() const { return node_.state_dir() + "/journal.db"; }

  HostFaults host_;
};

// --- 16: killed at every write -----------------------------------------------------------------------------

TEST_F(FaultWriteTest, Fault16BerthdKilledAtEveryWriteOfItsJournalEndsInTheSameState) {
  StartReady();
  const std::string volume = CreateVolume("v");
  const std::vector<std::string> before = Node::Tree(node_.state_dir() + "/volumes");
  int at = 0;
  for (bool killed = true; killed; node_.WaitReady(fault_.id())) {
    SCOPED_TRACE(fmt::format("write {}", ++at));
    const pid_t berthd = BerthdPid();
    host_.KillAtWrite(at);
    const grpc::Status published = TryPublish(volume, "job");
    const grpc::Status undone = published.ok() ? TryUnpublish(volume, "job") : published;
    // Its sockets close before it has ended. What is written after the answer may end it, too.
    if (!undone.ok()) WaitFor(undone.error_message(), [berthd] { return !Lives(berthd); });
    host_.Heal();
    killed = !Lives(berthd);
    if (!killed) continue;
    node_.Kill();
    node_.Start();
    node_.WaitReady(fault_.id());
    // The caller got no answer, and asks again.
    std::string target;
    if (!published.ok()) {
      target = Publish(volume, "job");
      EXPECT_EQ(MountsAt(target), 1);
    }
    Unpublish(volume, "job");
    EXPECT_FALSE(VolumeOf(volume).has_value());
    EXPECT_EQ(Node::Tree(node_.state_dir() + "/volumes"), before);
    ASSERT_FALSE(HasFailure());
  }
  // Each of three transactions writes pages and syncs them.
  EXPECT_GT(at, 9);
}

// --- 18: up- and downgrade ---------------------------------------------------------------------------------

class FaultUpgradeTest : public FaultWriteTest {
 protected:
  // Changes the journal of a node that is down as another berthd would have written it: each row by `change`,
  // then `sql`.
  void Rewrite(const std::function<void(UnknownFieldSet*)>& change, const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(Journal().c_str(), &db), SQLITE_OK);
    const std::unique_ptr<sqlite3, int (*)(sqlite3*)> owner(db, &sqlite3_close);
    const auto prepare = [db](const char* text) {
      sqlite3_stmt* statement = nullptr;
      EXPECT_EQ(sqlite3_prepare_v2(db, text, -1, &statement, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
      return std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)>(statement, &sqlite3_finalize);
    };
    std::map<std::string, std::string> rows;
    {
      const auto select = prepare("SELECT key, record FROM volumes");
      while (sqlite3_step(select.get()) == SQLITE_ROW) {
        const auto bytes = [&select](int column) {
          return std::string(static_cast<const char*>(sqlite3_column_blob(select.get(), column)),
                             static_cast<size_t>(sqlite3_column_bytes(select.get(), column)));
        };
        rows[bytes(0)] = bytes(1);
      }
    }
    ASSERT_FALSE(rows.empty());
    for (const auto& [key, record] : rows) {
      UnknownFieldSet fields;
      ASSERT_TRUE(fields.ParseFromString(record));
      change(&fields);
      std::string changed;
      ASSERT_TRUE(fields.SerializeToString(&changed));
      const std::string checksum = HashComponent({key, changed});
      const auto update = prepare("UPDATE volumes SET record = ?1, checksum = ?3 WHERE key = ?2");
      sqlite3_bind_blob(update.get(), 1, changed.data(), static_cast<int>(changed.size()), SQLITE_TRANSIENT);
      sqlite3_bind_text(update.get(), 2, key.data(), static_cast<int>(key.size()), SQLITE_TRANSIENT);
      sqlite3_bind_text(update.get(), 3, checksum.data(), static_cast<int>(checksum.size()),
                        SQLITE_TRANSIENT);
      ASSERT_EQ(sqlite3_step(update.get()), SQLITE_DONE) << sqlite3_errmsg(db);
    }
    ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
  }
  [[nodiscard]] std::string Bytes() const {
    const std::ifstream in(Journal(), std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
};

// Removes the fields with these numbers and above.
void Drop(UnknownFieldSet* fields, int first) {
  for (int i = fields->field_count() - 1; i >= 0; --i) {
    if (fields->field(i).number() >= first) fields->DeleteSubrange(i, 1);
  }
}

TEST_F(FaultUpgradeTest, Fault18AJournalThatWasNeverReleasedIsRefusedAndNothingChanged) {
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  node_.Stop();
  const std::vector<std::string> mounts = node_.Mounts();
  Rewrite([](UnknownFieldSet* /*record*/) {}, "PRAGMA user_version=1");
  const std::string before = Bytes();
  EXPECT_GT(node_.RunAnother(), 0);
  EXPECT_THAT(node_.log(), HasSubstr("never released"));
  EXPECT_EQ(Bytes(), before);
  EXPECT_EQ(node_.Mounts(), mounts);
  Rewrite([](UnknownFieldSet* /*record*/) {}, "PRAGMA user_version=2");
  node_.Start();
  node_.WaitReady(fault_.id());
  Unpublish(volume, "job");
}

TEST_F(FaultUpgradeTest, Fault18ARecordOfANewerBerthdIsRefusedAndNothingChanged) {
  constexpr int kVersion = 17;
  StartReady();
  const std::string volume = CreateVolume("v");
  Publish(volume, "job");
  node_.Stop();
  const std::vector<std::string> mounts = node_.Mounts();
  const auto set_version = [](UnknownFieldSet* record, uint64_t version) {
    Drop(record, kVersion);
    record->AddVarint(kVersion, version);
  };
  Rewrite([&](UnknownFieldSet* record) { set_version(record, 1000); }, "");
  const std::string before = Bytes();
  EXPECT_GT(node_.RunAnother(), 0);
  EXPECT_THAT(node_.log(), HasSubstr("another version of berthd"));
  EXPECT_EQ(Bytes(), before);
  EXPECT_EQ(node_.Mounts(), mounts);
  // The version that wrote it goes on with it.
  Rewrite([&](UnknownFieldSet* record) { set_version(record, 2); }, "");
  node_.Start();
  node_.WaitReady(fault_.id());
  Unpublish(volume, "job");
}

// --- 23: syncs that fail -----------------------------------------------------------------------------------

TEST_F(FaultWriteTest, Fault23NothingIsAcknowledgedUntilTheJournalIsWrittenAnew) {
  StartReady();
  const std::string kept = CreateVolume("kept");
  const std::string leaving = CreateVolume("leaving");
  const std::string fresh = CreateVolume("fresh");
  const std::string target = Publish(kept, "job");
  Publish(leaving, "job");
  host_.FailSyncs();
  EXPECT_FALSE(TryPublish(fresh, "job", nullptr, seconds(3)).ok());
  EXPECT_EQ(Calls("NodeStageVolume", fresh), 0) << "no plugin is asked for what is not on the disk";
  EXPECT_FALSE(TryUnpublish(leaving, "job", seconds(3)).ok());
  const auto unsound = [this] {
    return testing::Value(node_.Problems(), Contains(HasSubstr("nothing is acknowledged")));
  };
  WaitFor("it says so", unsound);
  EXPECT_EQ(MountsAt(target), 1);
  EXPECT_TRUE(VolumeOf(leaving).has_value()) << "it is not called free";

  host_.Heal();
  WaitFor("it is sound again", [&] { return !unsound(); });
  EXPECT_THAT(node_.log(), HasSubstr("written again"));
  WaitReleased(leaving);
  Publish(fresh, "job");
  // All of it is on the disk.
  node_.Kill();
  node_.Start();
  node_.WaitReady(fault_.id());
  EXPECT_FALSE(VolumeOf(leaving).has_value());
  for (const std::string& volume : {kept, fresh}) {
    const std::optional<v1::Volume> shown = VolumeOf(volume);
    ASSERT_TRUE(shown.has_value());
    EXPECT_EQ(shown->state(), v1::PUBLISHED);
    Unpublish(volume, "job");
  }
}

TEST_F(FaultWriteTest, Fault23ABerthdKilledWhileSyncsFailLosesNothingThatWasAcknowledged) {
  StartReady();
  const std::string kept = CreateVolume("kept");
  const std::string fresh = CreateVolume("fresh");
  Publish(kept, "job");
  host_.FailSyncs();
  EXPECT_FALSE(TryPublish(fresh, "job", nullptr, seconds(3)).ok());
  node_.Kill();
  host_.Heal();
  node_.Start();
  node_.WaitReady(fault_.id());
  const std::optional<v1::Volume> shown = VolumeOf(kept);
  ASSERT_TRUE(shown.has_value());
  EXPECT_EQ(shown->state(), v1::PUBLISHED);
  EXPECT_THAT(node_.Problems(), testing::Each(testing::Not(HasSubstr("acknowledged"))));
  Publish(fresh, "job");
  Unpublish(fresh, "job");
  Unpublish(kept, "job");
}

}  // namespace
}  // namespace berth
