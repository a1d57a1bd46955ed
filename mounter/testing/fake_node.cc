#include "mounter/testing/fake_node.h"

#include <fmt/format.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/safe_path.h"

namespace berth {
namespace {

grpc::Status Errno(const std::string& what) {
  return {grpc::StatusCode::INTERNAL, fmt::format("{}: {}", what, strerror(errno))};
}

}  // namespace

FakeNode::FakeNode(std::string socket_path, std::string backing)
    : socket_path_(std::move(socket_path)), backing_(std::move(backing)) {}

FakeNode::~FakeNode() { Stop(); }

void FakeNode::Start() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = false;
  }
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket_path_, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) std::abort();
}

void FakeNode::Stop() {
  if (server_ == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

void FakeNode::FailNext(const std::string& method, grpc::StatusCode code, Effect effect, int times) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < times; ++i) {
    faults_[method].push_back({.kind = Fault::Kind::kFail, .code = code, .effect = effect});
  }
}

void FakeNode::LieNext(const std::string& method, int times) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < times; ++i) faults_[method].push_back({.kind = Fault::Kind::kLie});
}

void FakeNode::HangNext(const std::string& method, Effect effect) {
  const std::lock_guard lock(mutex_);
  faults_[method].push_back({.kind = Fault::Kind::kHang, .effect = effect});
}

void FakeNode::ClearFaults() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
}

void FakeNode::IgnoreReadonly(bool ignore) {
  const std::lock_guard lock(mutex_);
  ignore_readonly_ = ignore;
}

void FakeNode::WhileStaging(std::function<void()> before, std::function<void()> after) {
  const std::lock_guard lock(mutex_);
  before_staging_ = std::move(before);
  after_staging_ = std::move(after);
}

void FakeNode::StageBare(bool bare) {
  const std::lock_guard lock(mutex_);
  stage_bare_ = bare;
}

void FakeNode::PublishFrom(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  publish_from_ = directory;
}

void FakeNode::LeaveTargets(bool leave) {
  const std::lock_guard lock(mutex_);
  leave_targets_ = leave;
}

void FakeNode::SayHealth(std::optional<::csi::v1::VolumeHealthErrorType> type, const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  health_.clear_health_statuses();
  if (!type) return;
  health_.add_health_statuses()->set_status(*type);
  health_.mutable_health_statuses(0)->set_reason(reason);
}

void FakeNode::SayCondition(bool abnormal, const std::string& message) {
  const std::scoped_lock lock(mutex_);
  condition_.emplace();
  condition_->set_abnormal(abnormal);
  condition_->set_message(message);
}

void FakeNode::MountAgain(bool again) {
  const std::lock_guard lock(mutex_);
  mount_again_ = again;
}

void FakeNode::Release() {
  const std::lock_guard lock(mutex_);
  ++released_;
  changed_.notify_all();
}

int FakeNode::Calls(const std::string& method) const {
  const std::lock_guard lock(mutex_);
  const auto it = calls_.find(method);
  return it == calls_.end() ? 0 : it->second;
}

bool FakeNode::WaitForCalls(const std::string& method, int count, Duration bound) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, bound, [&] {
    const auto it = calls_.find(method);
    return it != calls_.end() && it->second >= count;
  });
}

std::vector<std::string> FakeNode::Log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

std::vector<std::string> FakeNode::Breaches() const {
  const std::lock_guard lock(mutex_);
  return breaches_;
}

size_t FakeNode::StagedCount() const {
  const std::lock_guard lock(mutex_);
  return staged_.size();
}

size_t FakeNode::PublishedCount() const {
  const std::lock_guard lock(mutex_);
  return published_.size();
}

::csi::v1::NodePublishVolumeRequest FakeNode::LastPublish() const {
  const std::lock_guard lock(mutex_);
  return last_publish_;
}

::csi::v1::NodeStageVolumeRequest FakeNode::LastStage() const {
  const std::lock_guard lock(mutex_);
  return last_stage_;
}

std::string FakeNode::DataPath(const std::string& volume_id) const {
  return fmt::format("{}/{}", backing_, HashComponent({volume_id}));
}

void FakeNode::Breach(std::string what) { breaches_.push_back(std::move(what)); }

grpc::Status FakeNode::Run(grpc::ServerContext* context, const std::string& method,
                           const std::string& volume_id, const std::function<grpc::Status()>& effect) {
  std::unique_lock lock(mutex_);
  // Of a berthd that was killed with the call in flight. What came to be served late would be done after, and
  // against, what the next berthd has asked for.
  if (context->IsCancelled()) return {grpc::StatusCode::CANCELLED, "cancelled before it was begun"};
  ++calls_[method];
  log_.push_back(method + " " + volume_id);
  changed_.notify_all();
  std::vector<Fault>& faults = faults_[method];
  if (faults.empty()) return effect();
  const Fault fault = faults.front();
  faults.erase(faults.begin());
  if (fault.kind == Fault::Kind::kLie) return grpc::Status::OK;
  if (fault.effect == Effect::kDone) {
    const grpc::Status status = effect();
    if (!status.ok()) return status;
  }
  if (fault.kind == Fault::Kind::kFail) return {fault.code, fmt::format("{}: as scripted", method)};
  const int before = released_;
  while (released_ == before && !stopping_ && !context->IsCancelled()) {
    changed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  // Never OK at the caller's deadline: the answer could still arrive before the caller's own clock strikes.
  return released_ == before ? grpc::Status(grpc::StatusCode::CANCELLED, "cancelled") : grpc::Status::OK;
}

grpc::Status FakeNode::DoStage(const ::csi::v1::NodeStageVolumeRequest& request) {
  const std::string& path = request.staging_target_path();
  struct stat info{};
  if (stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    Breach("staging path is no directory: " + path);
  const auto known = staged_.find(request.volume_id());
  if (known != staged_.end()) {
    if (known->second.staging_target_path() != path) {
      Breach("staged at a second path: " + path);
      return {grpc::StatusCode::ALREADY_EXISTS, "staged elsewhere"};
    }
    // What the caller had to unmount itself, after a lie, is staged in our books alone.
    const auto facts = LookAt(path);
    const bool there = facts.ok() && facts->mount_root;
    if (there || request.volume_capability().has_block()) return grpc::Status::OK;
  }
  const std::string data = DataPath(request.volume_id());
  if (mkdir(data.c_str(), 0755) != 0 && errno != EEXIST) return Errno("mkdir " + data);
  before_staging_();
  if (!request.volume_capability().has_block() && !stage_bare_ &&
      mount(data.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    return Errno("bind " + path);
  }
  after_staging_();
  staged_[request.volume_id()] = request;
  return grpc::Status::OK;
}

grpc::Status FakeNode::DoUnstage(const ::csi::v1::NodeUnstageVolumeRequest& request) {
  for (const auto& [target, published] : published_) {
    // A target that the caller unmounted after a lie is published in our books alone.
    const auto facts = LookAt(target);
    const bool there = facts.ok() && (facts->mount_root || S_ISBLK(facts->mode));
    if (published.volume_id == request.volume_id() && there)
      Breach(fmt::format("unstaged {} while published at {}", request.volume_id(), target));
  }
  const auto known = staged_.find(request.volume_id());
  if (known == staged_.end()) return grpc::Status::OK;
  if (known->second.staging_target_path() != request.staging_target_path())
    Breach("unstaged at another path");
  if (!known->second.volume_capability().has_block() &&
      umount2(request.staging_target_path().c_str(), UMOUNT_NOFOLLOW) != 0 && errno != EINVAL &&
      errno != ENOENT) {
    return Errno("umount " + request.staging_target_path());
  }
  staged_.erase(known);
  return grpc::Status::OK;
}

grpc::Status FakeNode::DoPublish(const ::csi::v1::NodePublishVolumeRequest& request) {
  const std::string& target = request.target_path();
  const std::string& staging = request.staging_target_path();
  if (!staging.empty() && !staged_.contains(request.volume_id())) {
    Breach("published before it was staged: " + request.volume_id());
    return {grpc::StatusCode::FAILED_PRECONDITION, "not staged"};
  }
  // An ephemeral volume is known by its mount, any other by the books that we keep.
  const auto context = request.volume_context().find("csi.storage.k8s.io/ephemeral");
  const bool by_mount = context != request.volume_context().end() && context->second == "true";
  const bool done = published_.contains(target) && (!by_mount || LookAt(target)->mount_root);
  if (done && !mount_again_) return grpc::Status::OK;
  if (done && umount2(target.c_str(), UMOUNT_NOFOLLOW) != 0) return Errno("umount " + target);
  const bool block = request.volume_capability().has_block();
  if (block) {
    // Stands for any block device; it is not opened.
    if (mknod(target.c_str(), S_IFBLK | 0600, makedev(7, 200)) != 0) return Errno("mknod " + target);
    published_[target] = {.volume_id = request.volume_id(), .block = true};
    return grpc::Status::OK;
  }
  const std::string data = DataPath(request.volume_id());
  if (mkdir(data.c_str(), 0755) != 0 && errno != EEXIST) return Errno("mkdir " + data);
  if (mkdir(target.c_str(), 0755) != 0 && errno != EEXIST) return Errno("mkdir " + target);
  std::string source = staging.empty() ? data : staging;
  if (!publish_from_.empty()) source = publish_from_;
  if (mount(source.c_str(), target.c_str(), nullptr, MS_BIND, nullptr) != 0) return Errno("bind " + target);
  if (request.readonly() && !ignore_readonly_ &&
      mount(nullptr, target.c_str(), nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0) {
    return Errno("remount " + target);
  }
  published_[target] = {.volume_id = request.volume_id(), .block = false};
  return grpc::Status::OK;
}

grpc::Status FakeNode::DoUnpublish(const ::csi::v1::NodeUnpublishVolumeRequest& request) {
  const std::string& target = request.target_path();
  struct stat info{};
  if (lstat(target.c_str(), &info) != 0) {
    if (errno == ENOENT) {
      published_.erase(target);
      return grpc::Status::OK;
    }
    info.st_mode = S_IFDIR;  // of a dead file system, which only has to go
  }
  if (S_ISDIR(info.st_mode)) {
    if (umount2(target.c_str(), UMOUNT_NOFOLLOW) != 0 && errno != EINVAL) return Errno("umount " + target);
    if (!leave_targets_ && rmdir(target.c_str()) != 0) return Errno("rmdir " + target);
  } else if (!leave_targets_ && unlink(target.c_str()) != 0) {
    return Errno("unlink " + target);
  }
  published_.erase(target);
  return grpc::Status::OK;
}

grpc::Status FakeNode::NodeStageVolume(grpc::ServerContext* context,
                                       const ::csi::v1::NodeStageVolumeRequest* request,
                                       ::csi::v1::NodeStageVolumeResponse* /*response*/) {
  return Run(context, "NodeStageVolume", request->volume_id(), [&] {
    last_stage_ = *request;
    return DoStage(*request);
  });
}

grpc::Status FakeNode::NodeUnstageVolume(grpc::ServerContext* context,
                                         const ::csi::v1::NodeUnstageVolumeRequest* request,
                                         ::csi::v1::NodeUnstageVolumeResponse* /*response*/) {
  return Run(context, "NodeUnstageVolume", request->volume_id(), [&] { return DoUnstage(*request); });
}

grpc::Status FakeNode::NodePublishVolume(grpc::ServerContext* context,
                                         const ::csi::v1::NodePublishVolumeRequest* request,
                                         ::csi::v1::NodePublishVolumeResponse* /*response*/) {
  return Run(context, "NodePublishVolume", request->volume_id(), [&] {
    last_publish_ = *request;
    return DoPublish(*request);
  });
}

grpc::Status FakeNode::NodeUnpublishVolume(grpc::ServerContext* context,
                                           const ::csi::v1::NodeUnpublishVolumeRequest* request,
                                           ::csi::v1::NodeUnpublishVolumeResponse* /*response*/) {
  return Run(context, "NodeUnpublishVolume", request->volume_id(), [&] { return DoUnpublish(*request); });
}

grpc::Status FakeNode::NodeGetVolumeHealth(grpc::ServerContext* context,
                                           const ::csi::v1::NodeGetVolumeHealthRequest* request,
                                           ::csi::v1::NodeGetVolumeHealthResponse* response) {
  return Run(context, "NodeGetVolumeHealth", request->volume_id(), [&] {
    *response->mutable_volume_health() = health_;
    response->mutable_volume_health()->set_volume_id(request->volume_id());
    return published_.contains(request->volume_publish_path())
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::NOT_FOUND, "not there");
  });
}

grpc::Status FakeNode::NodeGetVolumeStats(grpc::ServerContext* context,
                                          const ::csi::v1::NodeGetVolumeStatsRequest* request,
                                          ::csi::v1::NodeGetVolumeStatsResponse* response) {
  return Run(context, "NodeGetVolumeStats", request->volume_id(), [&] {
    auto* usage = response->add_usage();
    usage->set_unit(::csi::v1::VolumeUsage::BYTES);
    usage->set_total(1000);
    usage->set_used(10);
    usage->set_available(990);
    if (condition_) *response->mutable_volume_condition() = *condition_;
    return published_.contains(request->volume_path())
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::NOT_FOUND, "not there");
  });
}

grpc::Status FakeNode::NodeExpandVolume(grpc::ServerContext* context,
                                        const ::csi::v1::NodeExpandVolumeRequest* request,
                                        ::csi::v1::NodeExpandVolumeResponse* response) {
  return Run(context, "NodeExpandVolume", request->volume_id(), [&] {
    response->set_capacity_bytes(request->capacity_range().required_bytes());
    const auto staged = staged_.find(request->volume_id());
    const bool there =
        published_.contains(request->volume_path()) ||
        (staged != staged_.end() && staged->second.staging_target_path() == request->volume_path());
    return there ? grpc::Status::OK : grpc::Status(grpc::StatusCode::NOT_FOUND, "not there");
  });
}

}  // namespace berth
