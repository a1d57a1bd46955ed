// Records on a real disk.
#include "declared/declared_records.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

MATCHER_P(Equals, record, "") { return MessageDifferencer::Equals(arg, record); }

DeclaredRecord Full() {
  DeclaredRecord record;
  record.set_version(1);
  record.set_file("data.toml");
  record.set_plugin("nfs.driver");
  record.set_volume_id("vol \"1\" ü");
  record.set_consumer("declared/data");
  record.set_name("n");
  record.set_plugin_id("nfs");
  record.set_mount_digest("0123");
  record.set_attach_sent(true);
  record.set_node_id("node-1");
  auto& context = *record.mutable_publish_context()->mutable_values();
  context["device"] = "/dev/x";
  context["empty"] = "";
  record.mutable_secrets_reference()->set_file("/etc/secret");
  return record;
}

class DeclaredRecordsTest : public testing::Test {
 protected:
  std::vector<DeclaredRecord> Load() {
    unreadable_.clear();
    const auto loaded = records_.Load(&unreadable_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.value_or(std::vector<DeclaredRecord>{});
  }

  TempDir dir_;
  DeclaredRecords records_{dir_.Path("declared")};
  std::vector<std::string> unreadable_;
};

TEST_F(DeclaredRecordsTest, ReadsWhatItWrote) {
  EXPECT_THAT(Load(), IsEmpty());
  const DeclaredRecord full = Full();
  DeclaredRecord bare;
  bare.set_version(1);
  bare.set_plugin("p");
  bare.set_plugin_id("p");
  bare.set_volume_id("v");
  bare.set_consumer("c");
  DeclaredRecord empty_context = bare;
  empty_context.set_name("other");
  empty_context.mutable_publish_context();
  empty_context.mutable_secrets_reference()->set_credential("cred");
  for (const DeclaredRecord& each : {full, bare, empty_context})
    ASSERT_EQ(records_.Write(each), absl::OkStatus());
  EXPECT_THAT(Load(), testing::UnorderedElementsAre(Equals(full), Equals(bare), Equals(empty_context)));
  EXPECT_THAT(unreadable_, IsEmpty());
  for (const auto& file : std::filesystem::directory_iterator(dir_.Path("declared"))) {
    struct stat info{};
    ASSERT_EQ(stat(file.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600U);
  }
}

TEST_F(DeclaredRecordsTest, TheLastWordCounts) {
  DeclaredRecord record = Full();
  ASSERT_EQ(records_.Write(record), absl::OkStatus());
  record.set_attach_sent(false);
  record.clear_publish_context();
  ASSERT_EQ(records_.Write(record), absl::OkStatus());
  EXPECT_THAT(Load(), ElementsAre(Equals(record)));
  EXPECT_EQ(records_.Remove(KeyOf(record)), absl::OkStatus());
  EXPECT_EQ(records_.Remove(KeyOf(record)), absl::OkStatus());
  EXPECT_THAT(Load(), IsEmpty());
}

TEST_F(DeclaredRecordsTest, WhatCannotBeReadIsNamedAndLeftAlone) {
  ASSERT_EQ(records_.Write(Full()), absl::OkStatus());
  dir_.Write("declared/a.json", "{ not json");
  dir_.Write("declared/b.json",
             R"({"version": 2, "plugin_id": "p", "volume_id": "v", "consumer": "c", "later": 1})");
  dir_.Write("declared/c.json", R"({"version": 1})");
  dir_.Write("declared/d.json.tmp", "cut short");
  EXPECT_THAT(Load(), ElementsAre(Equals(Full())));
  EXPECT_THAT(unreadable_,
              ElementsAre(HasSubstr("a.json is not the record"), HasSubstr("b.json was written by a newer"),
                          HasSubstr("c.json is not the record")));
  EXPECT_TRUE(std::filesystem::exists(dir_.Path("declared/b.json")));
}

TEST_F(DeclaredRecordsTest, ReadsWhatOthersHaveAdded) {
  dir_.Write("x", "");
  ASSERT_EQ(records_.Write(Full()), absl::OkStatus());
  dir_.Write("declared/a.json",
             R"({"version": 1, "plugin_id": "p", "volume_id": "v", "consumer": "c", "added": {"x": 1}})");
  EXPECT_EQ(Load().size(), 2);
}

}  // namespace
}  // namespace berth
