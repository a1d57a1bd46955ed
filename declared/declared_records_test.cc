// Notes on a real disk.
#include "declared/obligations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/testing/temp_dir.h"

namespace berth {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Obligation Full() {
  Obligation owed;
  owed.file = "data.toml";
  owed.key = {"nfs.driver", "vol \"1\" ü", "declared/data", "n"};
  owed.plugin_id = "nfs";
  owed.mount_digest = "0123";
  owed.attach_sent = true;
  owed.node_id = "node-1";
  owed.publish_context = {{"device", "/dev/x"}, {"empty", ""}};
  owed.secrets_reference = {SecretsReference::Kind::kFile, "/etc/secret"};
  return owed;
}

class ObligationsTest : public testing::Test {
 protected:
  std::vector<Obligation> Load() {
    unreadable_.clear();
    const auto loaded = notes_.Load(&unreadable_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.value_or(std::vector<Obligation>{});
  }

  TempDir dir_;
  Obligations notes_{dir_.Path("declared")};
  std::vector<std::string> unreadable_;
};

TEST_F(ObligationsTest, ReadsWhatItWrote) {
  EXPECT_THAT(Load(), IsEmpty());
  const Obligation full = Full();
  Obligation bare;
  bare.key = {"p", "v", "c", ""};
  bare.plugin_id = "p";
  Obligation empty_context = bare;
  empty_context.key.name = "other";
  empty_context.publish_context.emplace();
  empty_context.secrets_reference = {SecretsReference::Kind::kCredential, "cred"};
  for (const Obligation& each : {full, bare, empty_context}) ASSERT_EQ(notes_.Write(each), absl::OkStatus());
  EXPECT_THAT(Load(), testing::UnorderedElementsAre(full, bare, empty_context));
  EXPECT_THAT(unreadable_, IsEmpty());
  for (const auto& file : std::filesystem::directory_iterator(dir_.Path("declared"))) {
    struct stat info{};
    ASSERT_EQ(stat(file.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600U);
  }
}

TEST_F(ObligationsTest, TheLastWordCounts) {
  Obligation owed = Full();
  ASSERT_EQ(notes_.Write(owed), absl::OkStatus());
  owed.attach_sent = false;
  owed.publish_context.reset();
  ASSERT_EQ(notes_.Write(owed), absl::OkStatus());
  EXPECT_THAT(Load(), ElementsAre(owed));
  EXPECT_EQ(notes_.Remove(owed.key), absl::OkStatus());
  EXPECT_EQ(notes_.Remove(owed.key), absl::OkStatus());
  EXPECT_THAT(Load(), IsEmpty());
}

TEST_F(ObligationsTest, WhatCannotBeReadIsNamedAndLeftAlone) {
  ASSERT_EQ(notes_.Write(Full()), absl::OkStatus());
  dir_.Write("declared/a.json", "{ not json");
  dir_.Write("declared/b.json",
             R"({"version": 2, "plugin_id": "p", "volume_id": "v", "consumer": "c", "later": 1})");
  dir_.Write("declared/c.json", R"({"version": 1})");
  dir_.Write("declared/d.json.tmp", "cut short");
  EXPECT_THAT(Load(), ElementsAre(Full()));
  EXPECT_THAT(unreadable_,
              ElementsAre(HasSubstr("a.json is not a note"), HasSubstr("b.json was written by a newer"),
                          HasSubstr("c.json is not a note")));
  EXPECT_TRUE(std::filesystem::exists(dir_.Path("declared/b.json")));
}

TEST_F(ObligationsTest, ReadsWhatOthersHaveAdded) {
  dir_.Write("x", "");
  ASSERT_EQ(notes_.Write(Full()), absl::OkStatus());
  dir_.Write("declared/a.json",
             R"({"version": 1, "plugin_id": "p", "volume_id": "v", "consumer": "c", "added": {"x": 1}})");
  EXPECT_EQ(Load().size(), 2);
}

}  // namespace
}  // namespace berth
