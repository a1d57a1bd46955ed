#include "mounter/volume_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <string>

namespace berth {
namespace {

class VolumeQueueTest : public testing::Test {
 protected:
  static PublishRequest Publish(const std::string& consumer, Origin origin = Origin::kCaller) {
    PublishRequest request;
    request.consumer = consumer;
    request.origin = origin;
    return request;
  }
  static UnpublishRequest Unpublish(const std::string& consumer, bool force = false) {
    UnpublishRequest request;
    request.consumer = consumer;
    request.force = force;
    return request;
  }
  VolumeQueue::Operation Submit(VolumeRequest request) {
    auto operation = queue_.Submit(std::move(request), Clock::now() + std::chrono::seconds(1));
    EXPECT_TRUE(operation.ok()) << operation.status();
    return operation.value_or(nullptr);
  }

  asio::io_context io_;
  VolumeQueue queue_{io_.get_executor(), 3};
};

TEST_F(VolumeQueueTest, IdenticalRequestJoinsTheOneThatWaitsOrRuns) {
  const auto first = Submit(Publish("web"));
  EXPECT_EQ(Submit(Publish("web")), first);
  queue_.Begin();
  EXPECT_EQ(Submit(Publish("web")), first);
  EXPECT_TRUE(queue_.empty());
  EXPECT_NE(Submit(Publish("other")), first);
}

TEST_F(VolumeQueueTest, JoiningExtendsTheDeadline) {
  const auto first = Submit(Publish("web"));
  const TimePoint later = Clock::now() + std::chrono::hours(1);
  ASSERT_TRUE(queue_.Submit(Publish("web"), later).ok());
  EXPECT_EQ(first->wanted_until, later);
}

TEST_F(VolumeQueueTest, NothingJoinsPastAnotherRequestForTheSamePublication) {
  const auto first = Submit(Publish("web"));
  queue_.Begin();
  Submit(Unpublish("web"));
  EXPECT_NE(Submit(Publish("web")), first);
}

TEST_F(VolumeQueueTest, UnpublishEndsThePublishesThatHaveNotBegun) {
  const auto running = Submit(Publish("web"));
  queue_.Begin();
  auto changed = Publish("web");
  changed.readonly = true;
  const auto waiting = Submit(changed);
  const auto other = Submit(Publish("other"));
  Submit(Unpublish("web"));
  EXPECT_EQ(waiting->status.code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(running->done);
  EXPECT_FALSE(other->done);
}

TEST_F(VolumeQueueTest, ForcedUnpublishGoesFirst) {
  Submit(Publish("web"));
  const auto forced = Submit(Unpublish("other", /*force=*/true));
  queue_.Begin();
  EXPECT_EQ(queue_.current(), forced);
}

TEST_F(VolumeQueueTest, BeyondTheLimitIsRefusedUnlessItGoesFirst) {
  for (const char* consumer : {"a", "b", "c"}) Submit(Publish(consumer));
  EXPECT_EQ(queue_.Submit(Publish("d"), Clock::now()).status().code(), absl::StatusCode::kResourceExhausted);
  queue_.SubmitFirst(Unpublish("e"), Clock::now());
  queue_.Begin();
  EXPECT_EQ(std::get<UnpublishRequest>(queue_.current()->request).consumer, "e");
}

TEST_F(VolumeQueueTest, KnowsWhichUnpublishWaits) {
  Submit(Publish("web"));
  EXPECT_FALSE(queue_.UnpublishWaits());
  Submit(Unpublish("other"));
  EXPECT_TRUE(queue_.UnpublishWaits());
  EXPECT_TRUE(queue_.UnpublishWaits({.consumer = "other"}));
  EXPECT_FALSE(queue_.UnpublishWaits({.consumer = "web"}));
  EXPECT_FALSE(queue_.ForcedUnpublishWaits({.consumer = "other"}, /*whole_volume=*/true));
  Submit(Unpublish("third", /*force=*/true));
  EXPECT_TRUE(queue_.ForcedUnpublishWaits({.consumer = "web"}, /*whole_volume=*/true));
  EXPECT_FALSE(queue_.ForcedUnpublishWaits({.consumer = "web"}, /*whole_volume=*/false));
}

TEST_F(VolumeQueueTest, ExpectsAConsumerWhosePublishWaitsOrRuns) {
  Submit(Publish("web"));
  EXPECT_TRUE(queue_.Expects("web"));
  queue_.Begin();
  EXPECT_TRUE(queue_.Expects("web"));
  EXPECT_NE(queue_.End(), nullptr);
  EXPECT_FALSE(queue_.Expects("web"));
}

TEST_F(VolumeQueueTest, EndForwardEndsWhatWaitsAndMarksWhatRuns) {
  const auto running = Submit(Publish("web", Origin::kScheduler));
  queue_.Begin();
  const auto waiting = Submit(Publish("other", Origin::kScheduler));
  const auto local = Submit(Publish("local"));
  queue_.EndForward("no lease", [](const VolumeOperation& operation) {
    return std::get<PublishRequest>(operation.request).origin == Origin::kScheduler;
  });
  EXPECT_EQ(waiting->status, absl::UnavailableError("not begun: no lease"));
  EXPECT_FALSE(running->done);
  EXPECT_EQ(running->forward_blocked, "no lease");
  EXPECT_FALSE(local->done);
}

TEST_F(VolumeQueueTest, FailAllEndsWhatWaitsAndWhatRuns) {
  const auto running = Submit(Publish("web"));
  queue_.Begin();
  const auto waiting = Submit(Publish("other"));
  queue_.FailAll(absl::UnavailableError("berthd is stopping"));
  EXPECT_EQ(running->status, absl::UnavailableError("berthd is stopping"));
  EXPECT_EQ(waiting->status, absl::UnavailableError("berthd is stopping"));
  EXPECT_TRUE(queue_.empty());
}

}  // namespace
}  // namespace berth
