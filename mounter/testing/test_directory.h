// For tests: a PluginDirectory of one plugin, "hp", behind a socket, which can be away for a while. "hp2" is
// the same driver under another id.
#pragma once

#include <string>
#include <utility>

#include "mounter/plugin_directory.h"
#include "mounter/volume_types.h"

namespace berth {

class TestDirectory final : public PluginDirectory {
 public:
  TestDirectory(asio::any_io_executor executor, std::string socket_path)
      : changed_(std::move(executor)), socket_path_(std::move(socket_path)) {
    facts.name = "fake.example.com";
    facts.has_node_service = true;
    facts.node_id = "node-1";
    facts.node_capabilities = {::csi::v1::NodeServiceCapability::RPC::STAGE_UNSTAGE_VOLUME,
                               ::csi::v1::NodeServiceCapability::RPC::GET_VOLUME_STATS,
                               ::csi::v1::NodeServiceCapability::RPC::EXPAND_VOLUME};
    Connect();
  }

  // A new instance: its channel knows nothing of the old one's.
  void Connect() { client_ = CsiClient::Connect(socket_path_); }
  void SetUsable(bool usable) {
    usable_ = usable;
    if (usable) Connect();
    changed_.NotifyAll();
  }

  absl::StatusOr<Entry> Find(const std::string& plugin_id) override {
    if (on_find) on_find();
    if ((plugin_id != "hp" && plugin_id != "hp2") || removed)
      return absl::NotFoundError("plugin " + plugin_id + ": there is none; there is hp");
    if (!usable_) return absl::UnavailableError("plugin hp: backing off");
    return Entry{.client = client_,
                 .facts = facts,
                 .refuses_new = refuses_new,
                 .volumes_path = volumes_path,
                 .pod_info = pod_info};
  }
  Awaitable<void> WaitUsable(std::string /*plugin_id*/, TimePoint deadline) override {
    co_await changed_.WaitUntil([this] { return usable_; }, deadline);
  }

  std::vector<WantedToken> TokensWanted(const std::string& plugin_id) const override {
    return plugin_id == "hp" ? tokens : std::vector<WantedToken>();
  }

  Duration RestartAfterHungCall(const std::string& /*plugin_id*/) const override { return restart_after; }
  Awaitable<absl::Status> RestartHung(std::string /*plugin_id*/, TimePoint /*deadline*/) override {
    ++restarts;
    if (on_restart) co_return on_restart();
    co_return absl::OkStatus();
  }

  Duration restart_after{};
  int restarts = 0;
  std::function<absl::Status()> on_restart;
  // Called by each Find, which a step does last before its call leaves.
  std::function<void()> on_find;
  bool pod_info = false;
  PluginFacts facts;
  std::vector<WantedToken> tokens;
  std::string refuses_new;
  std::string volumes_path;
  bool removed = false;  // its file is gone

 private:
  Condition changed_;
  std::string socket_path_;
  std::shared_ptr<CsiClient> client_;
  bool usable_ = true;
};

}  // namespace berth
