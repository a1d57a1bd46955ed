// For tests: a CSI node plugin in this process, with a real gRPC server on a real Unix socket, that makes
// real bind mounts (and device nodes, for block volumes) and remembers what it did, as real drivers do.
// Faults are scripted per method:
//
//   plugin.FailNext("NodePublishVolume", grpc::StatusCode::ABORTED, Effect::kNone, 2);
//   plugin.LieNext("NodeUnpublishVolume");          // answers OK and does nothing
//   plugin.HangNext("NodeStageVolume", Effect::kDone);  // does it, and does not answer until Release
//
// It notes every breach of the specification by its caller (Breaches). Any thread.
#pragma once

#include <grpcpp/server.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/testing/test_bound.h"
#include "csi/csi.grpc.pb.h"

namespace berth {

// Whether a faulty call does what it was asked before it fails.
enum class Effect { kNone, kDone };

class FakeNode final : public ::csi::v1::Node::Service {
 public:
  // `backing` is a directory for the volumes' data.
  FakeNode(std::string socket_path, std::string backing);
  ~FakeNode() override;

  void Start();
  void Stop();

  void FailNext(const std::string& method, grpc::StatusCode code, Effect effect, int times = 1);
  void LieNext(const std::string& method, int times = 1);
  void HangNext(const std::string& method, Effect effect);
  // Nothing that is scripted and has not happened yet happens any more.
  void ClearFaults();
  // Mounts writable although read-only was asked for.
  void IgnoreReadonly(bool ignore);
  // NodeStageVolume calls `before`, mounts at the staging path, and calls `after`.
  void WhileStaging(std::function<void()> before, std::function<void()> after);
  // Stages without a mount, and publishes what lies at the staging path.
  void StageBare(bool bare);
  // Publishes this directory, whatever was staged. Empty: what was staged.
  void PublishFrom(const std::string& directory);
  // Leaves an unmounted target's directory or file behind.
  void LeaveTargets(bool leave);
  // What is published is taken down and mounted once more when it is published again.
  void MountAgain(bool again);
  // What NodeGetVolumeHealth answers from now on: nothing is wrong, or this.
  void SayHealth(std::optional<::csi::v1::VolumeHealthErrorType> type, const std::string& reason = "");
  // Its stats have a condition from now on.
  void SayCondition(bool abnormal, const std::string& message);
  // Lets those that hang answer.
  void Release();

  [[nodiscard]] int Calls(const std::string& method) const;
  // Waits until so many calls of `method` have arrived; false at the bound.
  [[nodiscard]] bool WaitForCalls(const std::string& method, int count, Duration bound = kTestBound) const;
  // "NodeStageVolume v1" and so on, in the order of arrival.
  [[nodiscard]] std::vector<std::string> Log() const;
  // What the caller did against the specification.
  [[nodiscard]] std::vector<std::string> Breaches() const;
  [[nodiscard]] size_t StagedCount() const;
  [[nodiscard]] size_t PublishedCount() const;
  [[nodiscard]] ::csi::v1::NodePublishVolumeRequest LastPublish() const;
  [[nodiscard]] ::csi::v1::NodeStageVolumeRequest LastStage() const;
  // Where a volume's data lie.
  [[nodiscard]] std::string DataPath(const std::string& volume_id) const;
  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }

  grpc::Status NodeStageVolume(grpc::ServerContext* context, const ::csi::v1::NodeStageVolumeRequest* request,
                               ::csi::v1::NodeStageVolumeResponse* response) override;
  grpc::Status NodeUnstageVolume(grpc::ServerContext* context,
                                 const ::csi::v1::NodeUnstageVolumeRequest* request,
                                 ::csi::v1::NodeUnstageVolumeResponse* response) override;
  grpc::Status NodePublishVolume(grpc::ServerContext* context,
                                 const ::csi::v1::NodePublishVolumeRequest* request,
                                 ::csi::v1::NodePublishVolumeResponse* response) override;
  grpc::Status NodeUnpublishVolume(grpc::ServerContext* context,
                                   const ::csi::v1::NodeUnpublishVolumeRequest* request,
                                   ::csi::v1::NodeUnpublishVolumeResponse* response) override;
  grpc::Status NodeGetVolumeHealth(grpc::ServerContext* context,
                                   const ::csi::v1::NodeGetVolumeHealthRequest* request,
                                   ::csi::v1::NodeGetVolumeHealthResponse* response) override;
  grpc::Status NodeGetVolumeStats(grpc::ServerContext* context,
                                  const ::csi::v1::NodeGetVolumeStatsRequest* request,
                                  ::csi::v1::NodeGetVolumeStatsResponse* response) override;
  grpc::Status NodeExpandVolume(grpc::ServerContext* context,
                                const ::csi::v1::NodeExpandVolumeRequest* request,
                                ::csi::v1::NodeExpandVolumeResponse* response) override;

 private:
  struct Fault {
    enum class Kind { kFail, kLie, kHang } kind = Kind::kFail;
    grpc::StatusCode code = grpc::StatusCode::OK;
    Effect effect = Effect::kNone;
  };
  struct Published {
    std::string volume_id;
    bool block = false;
  };

  // Counts the call, then does `effect` as the method's next fault has it. `mutex_` is taken inside.
  grpc::Status Run(grpc::ServerContext* context, const std::string& method, const std::string& volume_id,
                   const std::function<grpc::Status()>& effect);
  grpc::Status DoStage(const ::csi::v1::NodeStageVolumeRequest& request);
  grpc::Status DoUnstage(const ::csi::v1::NodeUnstageVolumeRequest& request);
  grpc::Status DoPublish(const ::csi::v1::NodePublishVolumeRequest& request);
  grpc::Status DoUnpublish(const ::csi::v1::NodeUnpublishVolumeRequest& request);
  void Breach(std::string what);

  std::string socket_path_;
  std::string backing_;
  std::unique_ptr<grpc::Server> server_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<std::string, std::vector<Fault>> faults_;
  std::map<std::string, int> calls_;
  std::vector<std::string> log_;
  std::vector<std::string> breaches_;
  std::map<std::string, ::csi::v1::NodeStageVolumeRequest> staged_;  // by volume
  std::map<std::string, Published> published_;                       // by target
  ::csi::v1::NodePublishVolumeRequest last_publish_;
  ::csi::v1::NodeStageVolumeRequest last_stage_;
  bool ignore_readonly_ = false;
  std::function<void()> before_staging_ = [] {};
  std::function<void()> after_staging_ = [] {};
  bool stage_bare_ = false;
  std::string publish_from_;
  bool leave_targets_ = false;
  bool mount_again_ = false;
  std::optional<::csi::v1::VolumeCondition> condition_;
  ::csi::v1::VolumeHealth health_;
  int released_ = 0;
  bool stopping_ = false;
};

}  // namespace berth
