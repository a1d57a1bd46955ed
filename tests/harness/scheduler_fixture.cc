#include "tests/harness/scheduler_fixture.h"

namespace berth {

TestScheduler& SchedulerTest::StartScheduler(TestScheduler::Options options) {
  if (options.address.empty()) options.address = "unix:" + node_.dir() + "/scheduler.sock";
  scheduler_ = std::make_unique<TestScheduler>(std::move(options));
  return *scheduler_;
}

void SchedulerTest::StartLinked(const std::string& settings, const std::string& sections) {
  if (!scheduler_) StartScheduler();
  node_.WriteBerthdToml("[scheduler]\naddresses = [\"" + scheduler_->address() + "\"]\n" + settings);
  StartReady(sections);
  scheduler_->WaitNode(kNode, "the plugins", [](const TestScheduler::Node& node) {
    return node.synced && node.state.lease() == v1::LEASE_VALID && node.plugins.contains("fault") &&
           node.plugins.at("fault").registered();
  });
}

void SchedulerTest::GoAway() {
  scheduler_->Refuse(grpc::Status(grpc::StatusCode::UNAVAILABLE, "away"));
  scheduler_->Cut();
}

v1::Operation SchedulerTest::Publishing(const std::string& volume, const std::string& consumer) {
  v1::Operation operation;
  operation.mutable_publish()->set_namespace_("jobs");
  v1::PublishVolumeRequest& request = *operation.mutable_publish()->mutable_request();
  request.set_plugin_id("fault");
  request.set_volume_id(volume);
  request.set_consumer(consumer);
  (*request.mutable_secrets())["password"] = kSecret;
  return operation;
}

v1::Operation SchedulerTest::Unpublishing(const std::string& volume, const std::string& consumer) {
  v1::Operation operation;
  operation.mutable_unpublish()->set_namespace_("jobs");
  v1::UnpublishVolumeRequest& request = *operation.mutable_unpublish()->mutable_request();
  request.set_plugin_id("fault");
  request.set_volume_id(volume);
  request.set_consumer(consumer);
  return operation;
}

std::string SchedulerTest::PublishFromAfar(const std::string& volume, const std::string& consumer) {
  const v1::OperationResult result = scheduler_->Run(kNode, Publishing(volume, consumer));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
  return result.publish().target_path();
}

void SchedulerTest::UnpublishFromAfar(const std::string& volume, const std::string& consumer) {
  const v1::OperationResult result = scheduler_->Run(kNode, Unpublishing(volume, consumer));
  EXPECT_EQ(result.outcome(), v1::OUTCOME_DONE) << result.message();
}

TestScheduler::Node SchedulerTest::WaitVolumeTold(const std::string& volume, v1::VolumeState state) {
  return scheduler_->WaitNode(kNode, "the volume to be reported", [&](const TestScheduler::Node& node) {
    const auto told = node.volumes.find({"fault", volume});
    return told != node.volumes.end() && told->second.state() == state;
  });
}

void SchedulerTest::WaitVolumeGone(const std::string& volume) {
  scheduler_->WaitNode(kNode, "the volume to be reported as gone", [&](const TestScheduler::Node& node) {
    return !node.volumes.contains({"fault", volume});
  });
}

void SchedulerTest::WaitLease(v1::LeaseState state) {
  scheduler_->WaitNode(kNode, "another state of the lease",
                       [&](const TestScheduler::Node& node) { return node.state.lease() == state; });
}

}  // namespace berth
