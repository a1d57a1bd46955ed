#include "scheduler/decide/claim_machine.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

namespace berth::scheduler {
namespace {

using google::protobuf::util::MessageDifferencer;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;
using Kind = ClaimStep::Kind;

constexpr TimePoint kNow{seconds(1000)};

class ClaimMachineTest : public ::testing::Test {
 protected:
  ClaimMachineTest() {
    claim_.record.set_namespace_("ns");
    claim_.record.mutable_request()->set_plugin_id("nfs");
    claim_.record.mutable_request()->set_volume_id("external");
    claim_.record.mutable_request()->set_consumer("web");
    claim_.record.mutable_request()->set_name("data");
  }
  // What Next says, taken.
  Kind Ask(uint64_t id) {
    const ClaimStep step = Next(claim_, node_, kNow);
    claim_ = step.after;
    if (step.kind == Kind::kPublish || step.kind == Kind::kUnpublish)
      claim_.record.mutable_operation()->set_id(id);
    return step.kind;
  }
  Kind Answer(const v1::OperationResult& result, bool others_there = false) {
    const ClaimStep step = Apply(claim_, result, node_, others_there, kNow, 0);
    claim_ = step.after;
    return step.kind;
  }
  void Mount() {
    EXPECT_EQ(Ask(41), Kind::kPublish);
    EXPECT_EQ(Answer(Published()), Kind::kWrite);
    EXPECT_TRUE(claim_.record.has_mount());
  }
  void Release() { claim_ = Leave(claim_, "released by ann").after; }

  static v1::OperationResult Result(v1::Outcome outcome, int code = 0, const std::string& message = "") {
    v1::OperationResult result;
    result.set_outcome(outcome);
    result.set_boot_id("b1");
    result.set_code(code);
    result.set_message(message);
    return result;
  }
  static v1::OperationResult Published() {
    v1::OperationResult result = Result(v1::OUTCOME_DONE);
    result.mutable_publish()->set_target_path("/target");
    return result;
  }
  static v1::OperationResult Unpublished(uint32_t uses_left = 0) {
    v1::OperationResult result = Result(v1::OUTCOME_DONE);
    result.mutable_unpublish()->set_uses_left(uses_left);
    return result;
  }
  v1::Publication& PrintableName(v1::VolumeState state = v1::PUBLISHED) {
    volume_.Clear();
    node_.volume = &volume_;
    v1::Publication& publication = *volume_.add_publications();
    publication.set_consumer("ns/web");
    publication.set_name("data");
    publication.set_origin(v1::SCHEDULER);
    publication.set_state(state);
    return publication;
  }

  ClaimState claim_;
  v1::Volume volume_;
  ClaimNode node_{.synced = true, .ready = true, .boot_id = "b1", .run_id = "r1", .stream = 1};
};

TEST_F(ClaimMachineTest, AClaimIsPublishedOnceItsNodeTakesIt) {
  node_.ready = false;
  EXPECT_EQ(Ask(41), Kind::kNone);
  node_.ready = true;
  EXPECT_EQ(Ask(41), Kind::kPublish);
  EXPECT_TRUE(claim_.record.sent());
  EXPECT_EQ(claim_.record.operation().run_id(), "r1");
  const v1::Operation operation = OperationOf(claim_.record);
  EXPECT_EQ(operation.id(), 41U);
  EXPECT_EQ(operation.publish().namespace_(), "ns");
  EXPECT_TRUE(MessageDifferencer::Equals(operation.publish().request(), claim_.record.request()));
  EXPECT_LE(operation.timeout().seconds(), 120);
  EXPECT_EQ(Ask(42), Kind::kNone) << "one at a time";
  EXPECT_EQ(Answer(Published()), Kind::kWrite);
  EXPECT_EQ(claim_.record.mount().target_path(), "/target");
  EXPECT_FALSE(claim_.record.has_operation());
  EXPECT_EQ(Ask(43), Kind::kNone);
}

TEST_F(ClaimMachineTest, WhatFailedIsTriedAgainLaterUnderANewId) {
  Duration before{};
  for (const v1::Outcome outcome : {v1::OUTCOME_RETRY, v1::OUTCOME_UNCERTAIN, v1::OUTCOME_UNKNOWN}) {
    claim_.not_before = {};
    Ask(41);
    EXPECT_EQ(Answer(Result(outcome, 14, "the server\nis away")), Kind::kWrite);
    EXPECT_EQ(claim_.record.error(), "the server\\x0ais away");
    EXPECT_EQ(claim_.record.phase(), pb::ClaimRecord::HELD);
    EXPECT_GT(claim_.not_before - kNow, before);
    before = claim_.not_before - kNow;
    EXPECT_EQ(Ask(42), Kind::kNone);
  }
  EXPECT_EQ(claim_.record.tries(), 3U);
  claim_.not_before = {};
  Ask(43);
  v1::OperationResult settled = Result(v1::OUTCOME_REFUSED);
  settled.set_refusal(v1::SETTLED);
  EXPECT_EQ(Answer(settled), Kind::kWrite);
  EXPECT_EQ(claim_.record.phase(), pb::ClaimRecord::HELD) << "it is not known what became of it";
  claim_.not_before = {};
  Mount();
  EXPECT_EQ(claim_.record.tries(), 0U);
  EXPECT_EQ(claim_.record.error(), "");
}

TEST_F(ClaimMachineTest, APublishThatNeverSucceededAndIsRefusedEndsTheClaim) {
  for (const v1::Outcome outcome : {v1::OUTCOME_REFUSED, v1::OUTCOME_FAILED}) {
    const ClaimState fresh = claim_;
    Ask(41);
    EXPECT_EQ(Answer(Result(outcome, 3, "no such flag")), Kind::kWrite);
    EXPECT_EQ(claim_.record.phase(), pb::ClaimRecord::LEAVING);
    EXPECT_EQ(claim_.record.cause(), "it could not be published");
    EXPECT_EQ(claim_.record.code(), 3);
    EXPECT_EQ(claim_.record.error(), "no such flag");
    EXPECT_EQ(Ask(42), Kind::kUnpublish) << "it may be half there";
    claim_ = fresh;
  }
  Mount();
  node_.boot_id = "b2";
  Ask(43);
  EXPECT_EQ(Answer(Result(v1::OUTCOME_FAILED, 3, "no such flag")), Kind::kWrite);
  EXPECT_EQ(claim_.record.phase(), pb::ClaimRecord::HELD) << "only a release ends it now";
  EXPECT_GE(claim_.not_before - kNow, minutes(5));
}

TEST_F(ClaimMachineTest, AMountOfAnotherBootOrOneThatIsBlockedIsMadeAgain) {
  Ask(41);
  node_.boot_id = "b2";
  EXPECT_EQ(Answer(Published()), Kind::kWrite);
  EXPECT_FALSE(claim_.record.has_mount()) << "made in another boot";
  EXPECT_EQ(Ask(42), Kind::kNone) << "not at once: the node may say so for ever";
  claim_.not_before = {};
  node_.boot_id = "b1";
  Mount();
  node_.boot_id = "b2";
  EXPECT_EQ(Ask(42), Kind::kPublish);
  node_.boot_id = "b1";
  PrintableName().set_blocked("its lease has expired");
  EXPECT_EQ(Answer(Published()), Kind::kWrite);
  EXPECT_FALSE(claim_.record.has_mount());
  EXPECT_THAT(claim_.record.error(), HasSubstr("its lease has expired"));
  EXPECT_EQ(Ask(43), Kind::kNone) << "not at once: State may be late";
  PrintableName();
  claim_.not_before = {};
  Mount();
  PrintableName().set_awaiting_secrets(true);
  EXPECT_EQ(Ask(44), Kind::kPublish);
}

TEST_F(ClaimMachineTest, AMountThatStateDoesNotShowIsMadeAgainOnTheNextStreamAlone) {
  Mount();
  EXPECT_EQ(Ask(42), Kind::kNone) << "State may be late";
  node_.stream = 2;
  node_.volume = &volume_;
  volume_.set_publications_omitted(1);
  EXPECT_EQ(Ask(42), Kind::kNone) << "State does not show all";
  node_.stream = 3;
  node_.volume = nullptr;
  EXPECT_EQ(Ask(42), Kind::kPublish);
}

TEST_F(ClaimMachineTest, AMountThatIsNoMountIsNotRecorded) {
  v1::OperationResult nothing = Published();
  nothing.mutable_publish()->clear_target_path();
  v1::OperationResult too_much = Published();
  too_much.mutable_publish()->mutable_mount()->add_mount_flags(std::string(70'000, 'x'));
  for (const v1::OperationResult& result : {nothing, too_much, Result(v1::OUTCOME_DONE)}) {
    Ask(41);
    EXPECT_EQ(Answer(result), Kind::kWrite);
    EXPECT_FALSE(claim_.record.has_mount());
    EXPECT_THAT(claim_.record.error(), HasSubstr("the node says"));
    claim_.not_before = {};
  }
}

TEST_F(ClaimMachineTest, AReleaseRetiresAPublishThatIsOpen) {
  Ask(41);
  Release();
  EXPECT_EQ(claim_.record.retired().id(), 41U);
  EXPECT_EQ(claim_.record.retired().run_id(), "r1");
  EXPECT_FALSE(claim_.record.has_operation());
  node_.ready = false;
  EXPECT_EQ(Ask(42), Kind::kUnpublish) << "it needs no lease";
  const v1::Operation operation = OperationOf(claim_.record);
  EXPECT_EQ(operation.unpublish().namespace_(), "ns");
  EXPECT_EQ(operation.unpublish().request().plugin_id(), "nfs");
  EXPECT_EQ(operation.unpublish().request().volume_id(), "external");
  EXPECT_EQ(operation.unpublish().request().consumer(), "web");
  EXPECT_EQ(operation.unpublish().request().name(), "data");
  EXPECT_EQ(Answer(Unpublished()), Kind::kEnd);
}

TEST_F(ClaimMachineTest, AClaimThatWasNeverSentEndsAtOnce) {
  node_ = {};
  Release();
  EXPECT_EQ(Ask(42), Kind::kEnd);
}

TEST_F(ClaimMachineTest, OnlyADoneUnpublishWithNothingLeftEndsAClaim) {
  Mount();
  Release();
  EXPECT_EQ(Ask(42), Kind::kUnpublish);
  const ClaimState asked = claim_;
  const auto answer = [&](const v1::OperationResult& result, bool others_there = false) {
    claim_ = asked;
    const Kind kind = Answer(result, others_there);
    EXPECT_EQ(claim_.record.phase(), pb::ClaimRecord::LEAVING);
    return kind;
  };
  EXPECT_EQ(answer(Unpublished()), Kind::kEnd);
  EXPECT_EQ(answer(Unpublished(2), /*others_there=*/true), Kind::kEnd);
  EXPECT_EQ(answer(Unpublished(2)), Kind::kWrite);
  EXPECT_EQ(claim_.record.error(), "2 other uses of the volume are left on its node");
  v1::OperationResult busy = Unpublished(1);
  busy.mutable_unpublish()->set_still_in_use(true);
  busy.mutable_unpublish()->set_used_by("process 7 (dd)");
  EXPECT_EQ(answer(busy), Kind::kWrite);
  EXPECT_EQ(answer(busy, /*others_there=*/true), Kind::kWrite);
  EXPECT_EQ(claim_.record.error(), "still used by process 7 (dd)");
  v1::OperationResult without_plugin = Unpublished();
  without_plugin.mutable_unpublish()->set_without_plugin(true);
  EXPECT_EQ(answer(without_plugin), Kind::kWrite);
  EXPECT_EQ(answer(Result(v1::OUTCOME_DONE)), Kind::kWrite) << "it does not say what is left";
  for (const int code : {0, 5, 14}) {
    for (const v1::Outcome outcome : {v1::OUTCOME_UNKNOWN, v1::OUTCOME_REFUSED, v1::OUTCOME_FAILED,
                                      v1::OUTCOME_RETRY, v1::OUTCOME_UNCERTAIN}) {
      EXPECT_EQ(answer(Result(outcome, code)), Kind::kWrite) << v1::Outcome_Name(outcome) << " " << code;
    }
  }
  for (const v1::Refusal refusal : {v1::SETTLED, v1::ID_REUSED}) {
    v1::OperationResult result = Unpublished();
    result.set_refusal(refusal);
    EXPECT_EQ(answer(result), Kind::kWrite);
  }
}

// Whatever the node says of itself, and however late it is.
TEST_F(ClaimMachineTest, NothingButAResultEndsAClaimThatWasSent) {
  Mount();
  Release();
  for (int bits = 0; bits < 8; ++bits) {
    node_.synced = (bits & 1) != 0;
    node_.ready = (bits & 2) != 0;
    node_.boot_id = (bits & 4) != 0 ? "b1" : "b2";
    for (const bool shown : {false, true}) {
      node_.volume = nullptr;
      if (shown) PrintableName();
      EXPECT_NE(Next(claim_, node_, kNow + std::chrono::hours(10'000)).kind, Kind::kEnd);
    }
  }
}

TEST_F(ClaimMachineTest, TheEndOfAConsumerIsAboutTheUseThatStateDoesNotShowAnyMore) {
  v1::EndedConsumer ended;
  const auto is_end_of = [&](bool at_synced = false, Duration later = {}) {
    return IsEndOf(claim_, node_, &ended, at_synced, kNow + later);
  };
  EXPECT_EQ(is_end_of(), EndOf::kAnother) << "this one was never sent";
  Ask(41);
  EXPECT_EQ(is_end_of(), EndOf::kUnknown);
  EXPECT_EQ(is_end_of(/*at_synced=*/true), EndOf::kUnknown) << "its result is not known";
  Answer(Published());
  EXPECT_EQ(is_end_of(), EndOf::kUnknown) << "State may be late";
  EXPECT_EQ(is_end_of(false, seconds(11)), EndOf::kThis);
  PrintableName();
  EXPECT_EQ(is_end_of(), EndOf::kUnknown);
  EXPECT_EQ(is_end_of(/*at_synced=*/true), EndOf::kAnother);
  // By its node's clock: it ended after this one was published, and is not undone yet.
  PrintableName().mutable_published_at()->set_seconds(100);
  ended.mutable_ended_at()->set_seconds(99);
  EXPECT_EQ(is_end_of(/*at_synced=*/true), EndOf::kAnother);
  ended.mutable_ended_at()->set_seconds(100);
  EXPECT_EQ(is_end_of(/*at_synced=*/true), EndOf::kThis);
  EXPECT_EQ(is_end_of(), EndOf::kUnknown) << "State may be of the one before";
  Ask(42);
  node_.volume = nullptr;
  EXPECT_EQ(is_end_of(), EndOf::kThis) << "it was shown, and is not any more";
  PrintableName(v1::UNPUBLISHING);
  EXPECT_EQ(is_end_of(), EndOf::kThis);
  node_.stream = 2;
  node_.volume = nullptr;
  node_.synced = false;
  EXPECT_EQ(is_end_of(), EndOf::kUnknown);
  node_.synced = true;
  EXPECT_EQ(is_end_of(/*at_synced=*/true), EndOf::kThis);
  Release();
  EXPECT_EQ(is_end_of(), EndOf::kThis);
}

}  // namespace
}  // namespace berth::scheduler
