// Expansions that are pending on the node.

#include "mounter/testing/mounter_reconcile_base.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MounterExpansionTest : public MounterReconcileTest {};

TEST_F(MounterExpansionTest, AnExpansionIsOwedUntilItIsDone) {
  const auto target = Publish(Request());
  ASSERT_TRUE(target.ok()) << target.status();
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 2);
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  EXPECT_EQ(View().pending_expansion_bytes, 1 << 20);
  EXPECT_TRUE(loop_.RunUntil([&] { return View().pending_expansion_bytes == 0; })) << View().last_error;
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 3);
  EXPECT_TRUE(IsMounted(*target)) << "that it failed undid nothing";
  EXPECT_THAT(EventTypes(), Contains("volume.expanded"));
}

TEST_F(MounterExpansionTest, AnExpansionThatIsOwedOutlivesBerthd) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugins_.SetUsable(false);
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  Close();
  Open();
  EXPECT_EQ(View().pending_expansion_bytes, 1 << 20);
  plugins_.SetUsable(true);
  EXPECT_TRUE(loop_.RunUntil([&] { return View().pending_expansion_bytes == 0; })) << View().last_error;
}

TEST_F(MounterExpansionTest, AnExpansionThatIsOwedOutlivesTheVolumesStay) {
  ASSERT_TRUE(Publish(Request()).ok());
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  ASSERT_TRUE(Unpublish(Request()).ok());
  EXPECT_TRUE(Gone());
  Close();
  plugin_.ClearFaults();
  Open();
  const size_t before = plugin_.Log().size();
  ASSERT_TRUE(Publish(Request()).ok());
  auto calls = plugin_.Log();
  calls.erase(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(before));
  EXPECT_THAT(calls, ElementsAre("NodeStageVolume v1", "NodeExpandVolume v1", "NodePublishVolume v1"));
  EXPECT_EQ(View().pending_expansion_bytes, 0);
  // Done is done.
  const int expansions = plugin_.Calls("NodeExpandVolume");
  ASSERT_TRUE(Unpublish(Request()).ok());
  Close();
  Open();
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), expansions);
}

TEST_F(MounterExpansionTest, AnExpansionIsOwedToAVolumeThatIsNotHere) {
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 10)), absl::OkStatus()) << "of long ago";
  EXPECT_TRUE(Gone()) << "it is not here by that";
  Close();
  Open();
  EXPECT_THAT(MessageOf(loop_.Run(mounter_->Explain("hp", "v1", Soon())).status()),
              HasSubstr("an expansion to 1048576 bytes is pending"));
  // A use of it that fails takes nothing away.
  plugin_.FailNext("NodeStageVolume", grpc::StatusCode::INVALID_ARGUMENT, Effect::kNone);
  EXPECT_FALSE(Publish(Request()).ok());
  EXPECT_TRUE(Gone());
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::UNAVAILABLE, Effect::kNone, 1000);
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(View().pending_expansion_bytes, 1 << 20);
  plugin_.ClearFaults();
  EXPECT_TRUE(loop_.RunUntil([&] { return View().pending_expansion_bytes == 0; })) << View().last_error;
}

TEST_F(MounterExpansionTest, AnExpansionThatIsRefusedWhereItIsStagedIsTriedWhereItIsPublished) {
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  plugin_.FailNext("NodeExpandVolume", grpc::StatusCode::INVALID_ARGUMENT, Effect::kNone);
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(View().pending_expansion_bytes, 0);
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 2);
}

TEST_F(MounterExpansionTest, NothingIsOwedToAVolumeThatWasDeleted) {
  ASSERT_EQ(loop_.Run(mounter_->SetPendingExpansion("hp", "v1", 1 << 20)), absl::OkStatus());
  ASSERT_EQ(loop_.Run(mounter_->CancelPendingExpansion("hp", "v1")), absl::OkStatus());
  EXPECT_EQ(loop_.Run(mounter_->CancelPendingExpansion("hp", "v2")), absl::OkStatus()) << "nothing was";
  Close();
  Open();
  ASSERT_TRUE(Publish(Request()).ok());
  EXPECT_EQ(plugin_.Calls("NodeExpandVolume"), 0);
}

}  // namespace
}  // namespace berth
