// Listings, which are many calls of the plugin.
#include <fmt/format.h>

#include "controller/testing/controller_calls_fixture.h"

namespace berth {
namespace {

namespace csi = ::csi::v1;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kListCall = v1::ControllerCall::kList;

// Volumes "v<first>" and on, the first of them with a context of so many bytes.
csi::ListVolumesResponse PageOf(int first, int count, const std::string& next_token, size_t bytes = 0) {
  csi::ListVolumesResponse page;
  for (int i = first; i < first + count; ++i) {
    page.add_entries()->mutable_volume()->set_volume_id(fmt::format("v{}", i));
  }
  constexpr size_t kEach = 60'000;
  for (int i = 0; bytes > 0; ++i) {
    const size_t part = std::min(bytes, kEach);
    csi::Volume& volume = *page.add_entries()->mutable_volume();
    volume.set_volume_id(fmt::format("large{}-{}", first, i));
    (*volume.mutable_volume_context())["k"] = std::string(part, 'x');
    bytes -= part;
  }
  page.set_next_token(next_token);
  return page;
}

class ControllerListingTest : public ControllerCallsTest {
 protected:
  ControllerListingTest() { AddAblePlugin(); }

  [[nodiscard]] csi::ListVolumesRequest Asked(size_t index) const {
    csi::ListVolumesRequest request;
    EXPECT_TRUE(fake_->RequestAt("ListVolumes", index, &request)) << index;
    return request;
  }

  v1::ControllerCall call_ = CallOf(kListCall);
};

TEST_F(ControllerListingTest, ReadsOnToTheLastPage) {
  fake_->AnswerNext("ListVolumes", PageOf(0, 2, "a"));
  fake_->FailNext("ListVolumes", {grpc::StatusCode::UNAVAILABLE, "away for a moment"});
  fake_->AnswerNext("ListVolumes", PageOf(2, 2, "b"));
  fake_->AnswerNext("ListVolumes", PageOf(0, 0, "c"));
  fake_->Answer("ListVolumes", PageOf(4, 1, ""));
  const Result result = Do(call_);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.outcome, v1::OUTCOME_DONE);
  ASSERT_EQ(result.answer.list().entries_size(), 5);
  EXPECT_EQ(result.answer.list().entries(4).volume().volume_id(), "v4");
  EXPECT_EQ(result.answer.list().next_token(), "");
  EXPECT_EQ(Asked(0).starting_token(), "");
  EXPECT_EQ(Asked(2).starting_token(), "a") << "the page that was not answered is asked for again";
  EXPECT_EQ(Asked(4).starting_token(), "c");
}

TEST_F(ControllerListingTest, NoMoreEntriesThanAreWanted) {
  call_.mutable_list()->set_max_entries(3);
  call_.mutable_list()->set_starting_token("t");
  fake_->AnswerNext("ListVolumes", PageOf(0, 2, "a"));
  fake_->Answer("ListVolumes", PageOf(2, 1, "b"));
  const Result result = Do(call_);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.answer.list().entries_size(), 3);
  EXPECT_EQ(result.answer.list().next_token(), "b");
  EXPECT_EQ(Asked(0).starting_token(), "t");
  EXPECT_EQ(Asked(0).max_entries(), 3);
  EXPECT_EQ(Asked(1).max_entries(), 1);
  EXPECT_EQ(fake_->Calls("ListVolumes"), 2);

  fake_->Answer("ListVolumes", PageOf(0, 4, ""));
  EXPECT_THAT(Message(Do(call_).status), HasSubstr("4 entries, though at most 3 were wanted"));
}

TEST_F(ControllerListingTest, WhatDoesNotFitGoesOnWithAToken) {
  constexpr size_t kTwoMiB = size_t{2} << 20;
  fake_->AnswerNext("ListVolumes", PageOf(0, 1, "a", kTwoMiB));
  fake_->Answer("ListVolumes", PageOf(1, 1, "", kTwoMiB));
  const Result result = Do(call_);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.answer.list().next_token(), "a");
  EXPECT_LT(result.answer.ByteSizeLong(), size_t{3} << 20);
  EXPECT_EQ(fake_->Calls("ListVolumes"), 2);
}

TEST_F(ControllerListingTest, BytesAreCountedAsTheyAreHandedOn) {
  // A control byte becomes four.
  csi::ListVolumesResponse page = PageOf(0, 200, "a");
  for (auto& entry : *page.mutable_entries()) {
    entry.mutable_status()->mutable_volume_condition()->set_message(std::string(3000, '\1'));
  }
  fake_->AnswerNext("ListVolumes", page);
  page.clear_next_token();
  fake_->Answer("ListVolumes", page);
  const Result result = Do(call_);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.answer.list().entries_size(), 200);
  EXPECT_EQ(result.answer.list().next_token(), "a");
  EXPECT_LT(result.answer.ByteSizeLong(), size_t{3} << 20);
}

TEST_F(ControllerListingTest, APageThatIsTooLargeIsAskedForInSmallerOnes) {
  fake_->AnswerNext("ListVolumes", PageOf(0, 0, "", size_t{5} << 20));
  fake_->AnswerNext("ListVolumes", PageOf(0, 0, "", (size_t{7} << 20) / 2));
  fake_->Answer("ListVolumes", PageOf(0, 1, ""));
  const Result result = Do(call_);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.answer.list().entries_size(), 1);
  EXPECT_EQ(Asked(0).max_entries(), 0) << "as many as the plugin likes";
  EXPECT_GT(Asked(1).max_entries(), Asked(2).max_entries());
  EXPECT_GT(Asked(2).max_entries(), 0);
}

TEST_F(ControllerListingTest, OneThatIsTooLargeEvenAloneEnds) {
  fake_->Fail("ListVolumes", {grpc::StatusCode::RESOURCE_EXHAUSTED, "too large"});
  const Result result = Do(call_);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(result.outcome, v1::OUTCOME_RETRY);
  EXPECT_LT(fake_->Calls("ListVolumes"), 10);
}

TEST_F(ControllerListingTest, OneThatIsAbortedOnTheWayIsBegunAnew) {
  fake_->AnswerNext("ListVolumes", PageOf(0, 2, "a"));
  fake_->FailNext("ListVolumes", {grpc::StatusCode::ABORTED, "the token is stale"});
  fake_->AnswerNext("ListVolumes", PageOf(0, 1, "b"));
  fake_->Answer("ListVolumes", PageOf(1, 1, ""));
  const Result result = Do(call_);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.answer.list().entries_size(), 2) << "none of the listing that was cancelled";
  EXPECT_EQ(Asked(2).starting_token(), "");
}

TEST_F(ControllerListingTest, OneThatIsAbortedAgainAndAgainIsGivenUp) {
  for (int i = 0; i < 10; ++i) {
    fake_->AnswerNext("ListVolumes", PageOf(0, 2, "a"));
    fake_->FailNext("ListVolumes", {grpc::StatusCode::ABORTED, "the token is stale"});
  }
  const Result result = Do(call_);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(result.outcome, v1::OUTCOME_RETRY);
  EXPECT_EQ(fake_->Calls("ListVolumes"), 8) << "four listings of two pages";
}

TEST_F(ControllerListingTest, TheCallersOwnTokenIsItsToGiveUp) {
  call_.mutable_list()->set_starting_token("old");
  fake_->Fail("ListVolumes", {grpc::StatusCode::ABORTED, "the token is stale"});
  const Result result = Do(call_);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(result.outcome, v1::OUTCOME_FAILED) << "the same again would be refused for ever";
  EXPECT_THAT(Message(result.status), AllOf(HasSubstr("begin again without it"), HasSubstr("is stale")));
  EXPECT_EQ(fake_->Calls("ListVolumes"), 1);
}

TEST_F(ControllerListingTest, OneThatIsAbortedAfterTheCallersTokenIsBegunAnewFromThere) {
  call_.mutable_list()->set_starting_token("t");
  fake_->AnswerNext("ListVolumes", PageOf(0, 2, "a"));
  fake_->FailNext("ListVolumes", {grpc::StatusCode::ABORTED, "the token is stale"});
  fake_->AnswerNext("ListVolumes", PageOf(0, 1, "b"));
  fake_->Answer("ListVolumes", PageOf(1, 1, ""));
  const Result result = Do(call_);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.answer.list().entries_size(), 2);
  EXPECT_EQ(Asked(2).starting_token(), "t");
}

TEST_F(ControllerListingTest, OneThatGoesInCirclesEnds) {
  fake_->AnswerNext("ListVolumes", PageOf(0, 1, "a"));
  fake_->AnswerNext("ListVolumes", PageOf(1, 1, "b"));
  fake_->Answer("ListVolumes", PageOf(2, 1, "a"));
  const Result result = Do(call_);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Message(result.status), HasSubstr("plugin p: its answer to ListVolumes is wrong"));
  EXPECT_EQ(fake_->Calls("ListVolumes"), 3);
}

TEST_F(ControllerListingTest, OneOfEmptyPagesEnds) {
  for (int i = 0; i < 200; ++i) fake_->AnswerNext("ListVolumes", PageOf(0, 0, fmt::format("t{}", i)));
  const Result result = Do(call_);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Message(result.status), HasSubstr("empty pages"));
  EXPECT_LT(fake_->Calls("ListVolumes"), 100);
}

TEST_F(ControllerListingTest, OneAtATimeIsHeldInMemory) {
  fake_->Hang("ListVolumes");
  fake_->Answer("ListSnapshots", csi::ListSnapshotsResponse());
  TaskScope scope(loop_.get_executor(), "test");
  std::optional<Result> first;
  std::optional<Result> second;
  Begin(scope, call_, first);
  ASSERT_TRUE(fake_->WaitForCalls("ListVolumes", 1));
  Begin(scope, call_, second);
  EXPECT_TRUE(Do(CallOf(v1::ControllerCall::kListSnapshots)).status.ok())
      << "of another kind, at the same time";
  EXPECT_EQ(fake_->Calls("ListVolumes"), 1);
  RunOn(loop_, scope.Join());
}

TEST_F(ControllerListingTest, SnapshotsAreListedAlike) {
  csi::ListSnapshotsResponse page;
  *page.add_entries()->mutable_snapshot() = SomeSnapshot("s1", "v");
  page.set_next_token("a");
  fake_->AnswerNext("ListSnapshots", page);
  page.mutable_entries(0)->mutable_snapshot()->set_snapshot_id("s2");
  page.clear_next_token();
  fake_->Answer("ListSnapshots", page);
  v1::ControllerCall call = CallOf(v1::ControllerCall::kListSnapshots);
  call.mutable_list_snapshots()->set_source_volume_id("v");
  (*call.mutable_list_snapshots()->mutable_secrets())["key"] = "hunter22";
  const Result result = Do(call);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.answer.list_snapshots().entries_size(), 2);
  csi::ListSnapshotsRequest asked;
  ASSERT_TRUE(fake_->LastRequest("ListSnapshots", &asked));
  EXPECT_EQ(asked.secrets().at("key"), "hunter22") << "with each page";

  call.mutable_list_snapshots()->set_source_volume_id("w");
  const Result other = Do(call);
  EXPECT_EQ(other.status.code(), absl::StatusCode::kInternal) << "of another volume than was asked for";
}

}  // namespace
}  // namespace berth
