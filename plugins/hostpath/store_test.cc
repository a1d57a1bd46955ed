#include "plugins/hostpath/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/unique_fd.h"

namespace berth::hostpath {
namespace {

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    std::string pattern = "/tmp/berth-hostpath-store-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    Reopen();
  }
  ~StoreTest() override {
    store_.reset();
    for (const char* suffix : {"", "-wal", "-shm"}) unlink((Path() + suffix).c_str());
    rmdir(directory_.c_str());
  }
  std::string Path() const { return directory_ + "/state.db"; }
  void Reopen() {
    store_.reset();
    auto opened = Store::Open(Path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  VolumeRecord Volume(const std::string& id, int64_t capacity = 10) {
    VolumeRecord volume;
    volume.id = id;
    volume.name = "name of " + id;
    volume.lifecycle = Lifecycle::kReady;
    volume.kind = Kind::kImage;
    volume.fs_type = "xfs";
    volume.capacity = capacity;
    volume.format = FormatState::kFormatting;
    volume.grow_pending = true;
    volume.preallocate = true;
    volume.direct_io = true;
    volume.parameters = "kind=image";
    volume.source_snapshot = "snap";
    return volume;
  }

  std::string directory_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, KeepsEveryFieldOfAVolumeOverAReopen) {
  const VolumeRecord wrote = Volume("vol-1");
  ASSERT_TRUE(store_->InsertVolume(wrote, 0).ok());
  Reopen();
  const auto read = store_->GetVolumeByName(wrote.name);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->id, wrote.id);
  EXPECT_EQ(read->lifecycle, wrote.lifecycle);
  EXPECT_EQ(read->kind, wrote.kind);
  EXPECT_EQ(read->fs_type, wrote.fs_type);
  EXPECT_EQ(read->capacity, wrote.capacity);
  EXPECT_EQ(read->format, wrote.format);
  EXPECT_TRUE(read->grow_pending && read->preallocate && read->direct_io);
  EXPECT_EQ(read->parameters, wrote.parameters);
  EXPECT_EQ(read->source_snapshot, wrote.source_snapshot);
}

TEST_F(StoreTest, ANameOfAnyBytesIsItself) {
  VolumeRecord odd = Volume("vol-1");
  odd.name = std::string("a\0b'; DROP TABLE volumes; --", 28);
  VolumeRecord shorter = Volume("vol-2");
  shorter.name = "a";
  ASSERT_TRUE(store_->InsertVolume(odd, 0).ok());
  ASSERT_TRUE(store_->InsertVolume(shorter, 0).ok());
  EXPECT_EQ(store_->GetVolumeByName(odd.name)->id, "vol-1");
  EXPECT_EQ(store_->GetVolumeByName("a")->id, "vol-2");
}

TEST_F(StoreTest, SequenceNumbersAreNotGivenOutAgain) {
  ASSERT_TRUE(store_->InsertVolume(Volume("vol-1"), 0).ok());
  ASSERT_TRUE(store_->DeleteVolume("vol-1").ok());
  Reopen();
  ASSERT_TRUE(store_->InsertVolume(Volume("vol-2"), 0).ok());
  EXPECT_EQ(store_->GetVolume("vol-2")->sequence, 2);
  EXPECT_EQ(store_->LastVolumeSequence().value(), 2);
}

TEST_F(StoreTest, APoolIsNotOverdrawn) {
  ASSERT_TRUE(store_->InsertVolume(Volume("vol-1", 60), 100).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store_->InsertVolume(Volume("vol-2", 41), 100)));
  SnapshotRecord snapshot;
  snapshot.id = "snap-1";
  snapshot.name = "snap";
  snapshot.size = 30;
  ASSERT_TRUE(store_->InsertSnapshot(snapshot, 100).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(store_->GrowVolume("vol-1", 71, false, 100)));
  EXPECT_TRUE(store_->GrowVolume("vol-1", 70, false, 100).ok());
  EXPECT_EQ(store_->ClaimedBytes().value(), 100);
}

TEST_F(StoreTest, OnlyReadyVolumesAreListed) {
  VolumeRecord creating = Volume("vol-1");
  creating.lifecycle = Lifecycle::kCreating;
  ASSERT_TRUE(store_->InsertVolume(creating, 0).ok());
  ASSERT_TRUE(store_->InsertVolume(Volume("vol-2"), 0).ok());
  ASSERT_EQ(store_->ListVolumes(0, 0)->size(), 1);
  EXPECT_EQ(store_->UnfinishedVolumes()->front().id, "vol-1");
  ASSERT_TRUE(store_->SetVolumeLifecycle("vol-1", Lifecycle::kReady).ok());
  EXPECT_EQ(store_->ListVolumes(0, 0)->size(), 2);
  EXPECT_EQ(store_->ListVolumes(1, 0)->size(), 1);
  EXPECT_EQ(store_->ListVolumes(0, 1)->size(), 1);
}

TEST_F(StoreTest, WhatBelongsToAVolumeGoesWithIt) {
  ASSERT_TRUE(store_->InsertVolume(Volume("vol-1"), 0).ok());
  ASSERT_TRUE(store_->PutAttachment({.volume_id = "vol-1", .node_id = "n"}, 0).ok());
  ASSERT_TRUE(store_->PutStaging({.volume_id = "vol-1", .path = "/s"}, 0).ok());
  ASSERT_TRUE(store_->PutPublication({.target = "/t", .volume_id = "vol-1"}).ok());
  ASSERT_TRUE(store_->DeleteVolume("vol-1").ok());
  EXPECT_TRUE(store_->AttachmentsOf("vol-1")->empty());
  EXPECT_FALSE(store_->StagingAt("/s")->has_value());
  EXPECT_FALSE(store_->PublicationAt("/t")->has_value());
}

TEST_F(StoreTest, NothingIsStagedOfAVolumeThatIsNotThere) {
  EXPECT_FALSE(store_->PutStaging({.volume_id = "none", .path = "/s"}, 0).ok());
}

TEST_F(StoreTest, AStateOfANewerProgramIsRefused) {
  store_.reset();
  {
    // The version is the big-endian number at byte 60 of the file.
    const UniqueFd file(open(Path().c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(pwrite(file.get(), "\0\0\0\x63", 4, 60), 4);
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(Store::Open(Path()).status()));
}

}  // namespace
}  // namespace berth::hostpath
