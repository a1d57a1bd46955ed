// Plays the script: runs each RPC through the rules that meet it, and writes the history.
//
//   call ──▶ rules `before` ──▶ effect (berth-hostpath's) ──▶ rules `after` ──▶ answer
//                │ fail, lie        × times of `repeat`            │ fail, answer
//                └──────────────▶ answer                           └▶ …
//
// The script is looked at again at each call, so that a test may change it at any time (by a rename: half a
// script would be a mistake); where the new one is wrong the old one stays, and log and history say so.
// Blocks, on gRPC's threads and on the caller's; all threads may use it.
#pragma once

#include <absl/status/statusor.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "plugins/hostpath/store.h"
#include "tests/fault_plugin/history.h"
#include "tests/fault_plugin/script.h"

namespace berth::fault {

class Player {
 public:
  // Reads the script and the counts of earlier runs. INVALID_ARGUMENT where either is wrong.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Player>> Open(const std::string& script_path,
                                                                    const std::string& history_path);
  ~Player();
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  // The rules of "start". Returns when the plugin may serve; false where it was asked to end meanwhile.
  [[nodiscard]] bool Start();
  // Where `forget` forgets. Before the first Run.
  void SetStore(hostpath::Store* store) { store_ = store; }

  // Has the effect of a request of the RPC's type.
  using Effect = std::function<grpc::Status(const google::protobuf::Message& request)>;
  grpc::Status Run(std::string_view rpc, const google::protobuf::Message& request,
                   google::protobuf::Message* response, const Effect& effect);

  // SIGTERM came. False: the script wants it ignored. True: what hangs or waits ends now.
  [[nodiscard]] bool Stop(int signal);

 private:
  struct Call {
    std::string_view rpc;
    const google::protobuf::Message* request = nullptr;
    google::protobuf::Message* response = nullptr;
  };
  // What has become of the call through the rules of one moment.
  struct Verdict {
    bool answered = false;  // `status` is the answer, and nothing more happens
    grpc::Status status;
    int times = 1;
    std::string beneath;  // the directory of the staging path where the effect is had; empty: on it
  };
  struct FileVersion {
    ino_t inode = 0;
    timespec time{};
    off_t size = -1;
  };

  Player(std::string script_path, std::string history_path);
  absl::Status Load();
  void Reload();
  std::vector<RuleCounts::Match> Meet(std::string_view rpc, std::string_view volume);
  Verdict Play(const std::vector<RuleCounts::Match>& matches, When when, const Call& call);
  // The deed itself, in this thread.
  void Do(const Rule& rule, const Call& call, Verdict* verdict);
  void HangUntilToldOtherwise(const std::string& rule);
  // Has the effect with this directory of the staging path as the staging path; with none, as it is. Makes
  // the directory before NodeStageVolume, and removes it after NodeUnstageVolume.
  static grpc::Status Beneath(const std::string& directory, const Call& call, const Effect& effect);
  void Change(const Rule& rule, const Call& call, Verdict* verdict) const;
  absl::Status Forget(const Rule& rule, const Call& call);
  // False: asked to end meanwhile.
  bool Wait(std::chrono::milliseconds time) const;
  static History::Fields Describe(const Call& call);

  const std::string script_path_;
  const std::string history_path_;
  History history_;
  hostpath::Store* store_ = nullptr;
  UniqueFd stop_event_;  // readable once it was asked to end
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ignores_sigterm_ = false;

  std::mutex mutex_;  // guards what follows
  FileVersion version_;
  Script script_;
  RuleCounts counts_;
  std::vector<std::thread> background_;
};

}  // namespace berth::fault
