// For tests only: berth.v1.Node on a real socket in this process, with answers that a test sets and requests
// that it can look at. Its methods run on gRPC's threads; what is shared is behind one mutex.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "berth/v1/node.grpc.pb.h"
#include "cli/testing/temp_dir.h"

namespace berth::cli {

class FakeNode final : public v1::Node::Service {
 public:
  FakeNode() { Serve(); }
  ~FakeNode() override { Stop(); }
  FakeNode(const FakeNode&) = delete;
  FakeNode& operator=(const FakeNode&) = delete;

  // Goes away, and comes back with all that it knows.
  void Stop() {
    Close();
    if (server_) server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    server_.reset();
  }
  void Serve() {
    closed_ = false;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  [[nodiscard]] const std::string& socket() const { return socket_; }
  [[nodiscard]] const TempDir& dir() const { return dir_; }

  // Set before berthctl runs.
  v1::GetStatusResponse status;
  v1::ListPluginsResponse plugins;
  v1::ListVolumesResponse volumes;
  v1::Plugin plugin;
  v1::Volume volume;
  v1::PublishVolumeResponse published;
  v1::UnpublishVolumeResponse unpublished;
  v1::CreateVolumeResponse created;
  v1::ExpandVolumeResponse expanded;
  v1::GetVolumeStatsResponse stats;
  v1::ReloadResponse reloaded;
  v1::EndConsumerResponse ended;
  v1::ListConsumerMountsResponse mounts;
  v1::ExplainVolumeResponse explained;
  v1::ExamineResponse examined;
  v1::ExamineResponse repaired;  // what Examine answers with `repair`
  v1::GetConsumerStatsResponse consumer_stats;
  v1::ClaimVolumeResponse claimed;
  std::map<std::string, v1::ListStorageVolumesResponse> storage;  // by page token
  // What ListDeclaredVolumes answers, one after the other; the last one for ever.
  std::deque<v1::ListDeclaredVolumesResponse> declared = {{}};
  // Of the drain that DrainNode begins, how many publications each look finds, one after the other; the
  // last one for ever. Empty: none.
  std::vector<int> left_in_drain;
  std::string claim_progress;  // what ClaimVolume says before its answer; empty: nothing
  v1::ReleaseClaimRequest release_request;
  // ClaimVolume fails unless it waits.
  bool scheduler_is_away = false;
  // How calls of ClaimVolume end before one is answered.
  std::deque<grpc::Status> claim_failures;
  // DrainNode does not wait to the end: the node has been put back into use.
  bool drain_is_ended = false;
  // Where there are any, ListVolumes answers with them, one after the other.
  std::vector<v1::ListVolumesResponse> volume_pages;
  // How many calls of UnpublishVolume end with DEADLINE_EXCEEDED before one is answered.
  int unpublish_takes_calls = 0;
  std::vector<v1::WatchLogResponse> log_entries;  // WatchLog ends after them
  // How many calls of DrainPlugin end with DEADLINE_EXCEEDED before one is answered.
  int drain_takes_calls = 0;
  // Every call fails with this, if it is not OK; GetVolume does not where `volume_is_seen`.
  grpc::Status failure;
  bool volume_is_seen = false;
  // PublishVolume answers only after so many calls of GetVolume, or once the caller has gone or the test is
  // over.
  int publish_waits_for_looks = 0;

  // The requests of berthctl's calls, read once it has ended.
  std::vector<std::string> calls;
  v1::ListVolumesRequest list_request;
  v1::ListDeclaredVolumesRequest declared_request;
  v1::GetVolumeRequest get_request;
  v1::StopPluginRequest stop_request;
  v1::SwapPluginRequest swap_request;
  v1::ReloadRequest reload_request;
  std::vector<v1::ReadPluginLogRequest> log_requests;
  v1::WatchLogRequest watch_log_request;
  v1::RestartPluginRequest restart_request;
  v1::PublishVolumeRequest publish_request;
  v1::UnpublishVolumeRequest unpublish_request;
  v1::CreateVolumeRequest create_request;
  v1::DeleteVolumeRequest delete_request;
  v1::ExpandVolumeRequest expand_request;
  v1::GetVolumeStatsRequest stats_request;
  v1::EndConsumerRequest end_request;
  v1::ListConsumerMountsRequest mounts_request;
  v1::ExplainVolumeRequest explain_request;
  v1::GetConsumerStatsRequest consumer_stats_request;
  v1::WatchEventsRequest watch_request;
  v1::DrainNodeRequest drain_request;
  v1::ClaimVolumeRequest claim_request;

  // Adds to a log the lines "line 0", "line 1", …; a line's position is its number. Current readers get them,
  // too.
  void Write(int lines) {
    const std::lock_guard lock(mutex_);
    log_end_ += lines;
    changed_.notify_all();
  }
  // Reported with the next lines.
  void LoseLines(uint64_t lines) {
    const std::lock_guard lock(mutex_);
    missed_ = lines;
  }

  // Given to those who watch, also to those that do already.
  void Append(v1::WatchEventsResponse event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  grpc::Status GetStatus(grpc::ServerContext* /*context*/, const v1::GetStatusRequest* /*request*/,
                         v1::GetStatusResponse* response) override {
    LookAtDrain();
    return Answer("GetStatus", status, response);
  }
  grpc::Status DrainNode(grpc::ServerContext* context, const v1::DrainNodeRequest* request,
                         v1::DrainNodeResponse* response) override {
    drain_request = *request;
    v1::DrainNodeResponse answer;
    if (request->end()) {
      status.clear_drain();
    } else {
      if (request->wait() && drain_is_ended) {
        return {grpc::StatusCode::ABORTED, "the drain was ended meanwhile"};
      }
      status.mutable_drain()->set_reason(request->reason());
      do {
        LookAtDrain();
      } while (request->wait() && left_in_drain.size() > 1);
      LookAtDrain();
      if (request->wait() && status.drain().publications_left() > 0) {
        std::unique_lock lock(mutex_);
        changed_.wait_until(lock, context->deadline(), [this] { return closed_; });
        return {grpc::StatusCode::DEADLINE_EXCEEDED, "some are left"};
      }
      *answer.mutable_drain() = status.drain();
    }
    return Answer("DrainNode", answer, response);
  }
  grpc::Status ClaimVolume(grpc::ServerContext* /*context*/, const v1::ClaimVolumeRequest* request,
                           grpc::ServerWriter<v1::ClaimVolumeResponse>* out) override {
    claim_request = *request;
    v1::ClaimVolumeResponse response;
    const grpc::Status answered = Answer("ClaimVolume", claimed, &response);
    const std::lock_guard lock(mutex_);
    if (scheduler_is_away && !request->wait()) {
      return {grpc::StatusCode::UNAVAILABLE, "the scheduler is not connected"};
    }
    if (!claim_progress.empty()) {
      v1::ClaimVolumeResponse progress;
      progress.set_progress(claim_progress);
      out->Write(progress);
    }
    if (claim_failures.empty()) {
      if (answered.ok()) out->Write(response);
      return answered;
    }
    grpc::Status failed = claim_failures.front();
    claim_failures.pop_front();
    return failed;
  }
  grpc::Status ReleaseClaim(grpc::ServerContext* /*context*/, const v1::ReleaseClaimRequest* request,
                            v1::ReleaseClaimResponse* response) override {
    release_request = *request;
    return Answer("ReleaseClaim", v1::ReleaseClaimResponse(), response);
  }
  grpc::Status ListPlugins(grpc::ServerContext* /*context*/, const v1::ListPluginsRequest* /*request*/,
                           v1::ListPluginsResponse* response) override {
    return Answer("ListPlugins", plugins, response);
  }
  grpc::Status GetPlugin(grpc::ServerContext* /*context*/, const v1::GetPluginRequest* request,
                         v1::Plugin* response) override {
    return Answer("GetPlugin " + request->id(), plugin, response);
  }
  grpc::Status StartPlugin(grpc::ServerContext* /*context*/, const v1::StartPluginRequest* request,
                           v1::Plugin* response) override {
    return Answer("StartPlugin " + request->id(), plugin, response);
  }
  grpc::Status StopPlugin(grpc::ServerContext* /*context*/, const v1::StopPluginRequest* request,
                          v1::Plugin* response) override {
    stop_request = *request;
    return Answer("StopPlugin " + request->id(), plugin, response);
  }
  grpc::Status RestartPlugin(grpc::ServerContext* /*context*/, const v1::RestartPluginRequest* request,
                             v1::Plugin* response) override {
    restart_request = *request;
    return Answer("RestartPlugin " + request->id(), plugin, response);
  }
  grpc::Status DrainPlugin(grpc::ServerContext* /*context*/, const v1::DrainPluginRequest* request,
                           v1::Plugin* response) override {
    const grpc::Status answered = Answer("DrainPlugin " + request->id(), plugin, response);
    const std::lock_guard lock(mutex_);
    if (drain_takes_calls-- > 0) return {grpc::StatusCode::DEADLINE_EXCEEDED, "it drains"};
    return answered;
  }
  grpc::Status SwapPlugin(grpc::ServerContext* /*context*/, const v1::SwapPluginRequest* request,
                          v1::Plugin* response) override {
    swap_request = *request;
    return Answer("SwapPlugin " + request->id(), plugin, response);
  }
  grpc::Status Reload(grpc::ServerContext* /*context*/, const v1::ReloadRequest* request,
                      v1::ReloadResponse* response) override {
    reload_request = *request;
    return Answer("Reload", reloaded, response);
  }
  grpc::Status ReadPluginLog(grpc::ServerContext* context, const v1::ReadPluginLogRequest* request,
                             grpc::ServerWriter<v1::ReadPluginLogResponse>* writer) override {
    std::unique_lock lock(mutex_);
    calls.emplace_back("ReadPluginLog " + request->id());
    log_requests.push_back(*request);
    if (!failure.ok()) return failure;
    int next = 0;
    if (request->has_after()) next = static_cast<int>(request->after().position());
    if (request->has_last_lines()) next = std::max(0, log_end_ - static_cast<int>(request->last_lines()));
    bool placed = false;
    while (!closed_ && !context->IsCancelled()) {
      v1::ReadPluginLogResponse message;
      for (; next < log_end_; ++next) {
        v1::PluginLogLine& line = *message.add_lines();
        line.set_position(static_cast<uint64_t>(next));
        line.set_number(static_cast<uint64_t>(next));
        line.mutable_time()->set_seconds(1'700'000'000);
        line.mutable_time()->set_nanos(7'000'000);
        line.set_text("line " + std::to_string(next));
      }
      message.mutable_next()->set_position(static_cast<uint64_t>(next));
      message.set_missed_lines(std::exchange(missed_, 0));
      if ((message.lines_size() > 0 || (request->follow() && !placed)) && !writer->Write(message)) break;
      placed = true;
      if (!request->follow()) break;
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
    if (closed_) return {grpc::StatusCode::UNAVAILABLE, "berthd is stopping"};
    return grpc::Status::OK;
  }
  grpc::Status WatchLog(grpc::ServerContext* /*context*/, const v1::WatchLogRequest* request,
                        grpc::ServerWriter<v1::WatchLogResponse>* writer) override {
    const std::lock_guard lock(mutex_);
    calls.emplace_back("WatchLog");
    watch_log_request = *request;
    for (const v1::WatchLogResponse& message : log_entries) writer->Write(message);
    return failure;
  }
  grpc::Status ListVolumes(grpc::ServerContext* /*context*/, const v1::ListVolumesRequest* request,
                           v1::ListVolumesResponse* response) override {
    list_request = *request;
    if (volume_pages.empty()) return Answer("ListVolumes", volumes, response);
    const size_t page = request->page_token().empty() ? 0 : std::stoul(request->page_token());
    return Answer("ListVolumes", volume_pages.at(page), response);
  }
  grpc::Status ListDeclaredVolumes(grpc::ServerContext* /*context*/,
                                   const v1::ListDeclaredVolumesRequest* request,
                                   v1::ListDeclaredVolumesResponse* response) override {
    const grpc::Status answered = Answer("ListDeclaredVolumes", declared.front(), response);
    const std::lock_guard lock(mutex_);
    declared_request = *request;
    if (declared.size() > 1) declared.pop_front();
    return answered;
  }
  grpc::Status GetVolume(grpc::ServerContext* /*context*/, const v1::GetVolumeRequest* request,
                         v1::Volume* response) override {
    grpc::Status result = Answer("GetVolume " + request->volume_id(), volume, response);
    const std::lock_guard lock(mutex_);
    if (volume_is_seen) {
      *response = volume;
      result = grpc::Status::OK;
    }
    get_request = *request;
    ++looks_;
    changed_.notify_all();
    return result;
  }
  grpc::Status PublishVolume(grpc::ServerContext* context, const v1::PublishVolumeRequest* request,
                             v1::PublishVolumeResponse* response) override {
    {
      std::unique_lock lock(mutex_);
      publish_request = *request;
      while (looks_ < publish_waits_for_looks && !closed_ && !context->IsCancelled()) {
        changed_.wait_for(lock, std::chrono::milliseconds(20));
      }
    }
    return Answer("PublishVolume", published, response);
  }
  grpc::Status UnpublishVolume(grpc::ServerContext* /*context*/, const v1::UnpublishVolumeRequest* request,
                               v1::UnpublishVolumeResponse* response) override {
    unpublish_request = *request;
    const grpc::Status answered = Answer("UnpublishVolume", unpublished, response);
    const std::lock_guard lock(mutex_);
    if (unpublish_takes_calls-- > 0) return {grpc::StatusCode::DEADLINE_EXCEEDED, "it has not ended"};
    return answered;
  }
  grpc::Status EndConsumer(grpc::ServerContext* /*context*/, const v1::EndConsumerRequest* request,
                           v1::EndConsumerResponse* response) override {
    end_request = *request;
    return Answer("EndConsumer", ended, response);
  }
  grpc::Status ListConsumerMounts(grpc::ServerContext* /*context*/,
                                  const v1::ListConsumerMountsRequest* request,
                                  v1::ListConsumerMountsResponse* response) override {
    mounts_request = *request;
    return Answer("ListConsumerMounts", mounts, response);
  }
  grpc::Status ExplainVolume(grpc::ServerContext* /*context*/, const v1::ExplainVolumeRequest* request,
                             v1::ExplainVolumeResponse* response) override {
    explain_request = *request;
    return Answer("ExplainVolume", explained, response);
  }
  grpc::Status Examine(grpc::ServerContext* /*context*/, const v1::ExamineRequest* request,
                       v1::ExamineResponse* response) override {
    return Answer(request->repair() ? "Examine repair" : "Examine", request->repair() ? repaired : examined,
                  response);
  }
  grpc::Status GetConsumerStats(grpc::ServerContext* /*context*/, const v1::GetConsumerStatsRequest* request,
                                v1::GetConsumerStatsResponse* response) override {
    consumer_stats_request = *request;
    return Answer("GetConsumerStats", consumer_stats, response);
  }
  grpc::Status ListStorageVolumes(grpc::ServerContext* /*context*/,
                                  const v1::ListStorageVolumesRequest* request,
                                  v1::ListStorageVolumesResponse* response) override {
    EXPECT_EQ(request->plugin_id(), "nfs");
    const auto page = storage.find(request->page_token());
    return page == storage.end() ? grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, request->page_token())
                                 : Answer("ListStorageVolumes", page->second, response);
  }
  grpc::Status CreateVolume(grpc::ServerContext* /*context*/, const v1::CreateVolumeRequest* request,
                            v1::CreateVolumeResponse* response) override {
    create_request = *request;
    return Answer("CreateVolume", created, response);
  }
  grpc::Status DeleteVolume(grpc::ServerContext* /*context*/, const v1::DeleteVolumeRequest* request,
                            v1::DeleteVolumeResponse* response) override {
    delete_request = *request;
    return Answer("DeleteVolume", v1::DeleteVolumeResponse(), response);
  }
  grpc::Status ExpandVolume(grpc::ServerContext* /*context*/, const v1::ExpandVolumeRequest* request,
                            v1::ExpandVolumeResponse* response) override {
    expand_request = *request;
    return Answer("ExpandVolume", expanded, response);
  }
  grpc::Status GetVolumeStats(grpc::ServerContext* /*context*/, const v1::GetVolumeStatsRequest* request,
                              v1::GetVolumeStatsResponse* response) override {
    stats_request = *request;
    return Answer("GetVolumeStats", stats, response);
  }
  grpc::Status WatchEvents(grpc::ServerContext* context, const v1::WatchEventsRequest* request,
                           grpc::ServerWriter<v1::WatchEventsResponse>* writer) override {
    std::unique_lock lock(mutex_);
    calls.emplace_back("WatchEvents");
    watch_request = *request;
    if (!failure.ok()) return failure;
    for (size_t sent = 0; !closed_ && !context->IsCancelled();) {
      if (sent < events_.size()) {
        if (!writer->Write(events_[sent++])) break;
      } else if (request->follow()) {
        changed_.wait_for(lock, std::chrono::milliseconds(20));
      } else {
        break;
      }
    }
    return grpc::Status::OK;
  }

 private:
  template <class Message>
  grpc::Status Answer(std::string call, const Message& answer, Message* response) {
    const std::lock_guard lock(mutex_);
    calls.push_back(std::move(call));
    if (!failure.ok()) return failure;
    *response = answer;
    return grpc::Status::OK;
  }

  void LookAtDrain() {
    const std::lock_guard lock(mutex_);
    if (!status.has_drain() || left_in_drain.empty()) return;
    status.mutable_drain()->set_publications_left(left_in_drain.front());
    if (left_in_drain.size() > 1) left_in_drain.erase(left_in_drain.begin());
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  TempDir dir_;
  std::string socket_ = dir_.Path("berthd.sock");
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::WatchEventsResponse> events_;
  int looks_ = 0;
  int log_end_ = 0;
  uint64_t missed_ = 0;
  bool closed_ = false;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace berth::cli
