// Probes one instance of a plugin for as long as it lives, and reads what it is and can do.
//
// Owned by main, one per instance; loop thread only. Reports what it finds through FingerprintSink;
// decides nothing about the plugin's process. The first Probe leaves when the Fingerprinter is made; while
// the plugin does not answer yet it is asked again after a few milliseconds (probe_schedule.h), never by a
// backoff of seconds. Facts are read at the first Probe that says ready, after every recovery, at
// `fingerprint_interval`, and at each probe of a plugin that is refused.
//
// A plugin with GET_STORAGE_HEALTH is asked once a minute, after a Probe that says ready, what is wrong with
// its storage.
//
// Events: plugin.storage_abnormal and .storage_normal (of NodeGetStorageHealth), plugin.fingerprinted (the
// first facts), plugin.changed (one for each difference), plugin.refused, plugin.warning (a rule of CSI that
// the plugin begins to break).
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "csi/client.h"
#include "csi/health.h"
#include "csi/plugin_facts.h"
#include "fingerprint/facts.h"

namespace berth {

struct ProbeResult {
  // Probe was answered as ready (a missing `ready` counts as ready), and what was asked after it too: an
  // RPC of the fingerprint that gets no answer makes its probe a failed one.
  bool ok = false;
  WallTime at;
  Duration latency{};  // of Probe alone
  std::string
      error;  // empty if ok; "not ready" if it said so; else "UNAVAILABLE: …", or the RPC's name before it
  bool answered = false;  // false: no answer, or an error
  // What is wrong with the plugin's storage (NodeGetStorageHealth), as it said last. Empty: nothing, or it
  // cannot say so.
  std::vector<HealthStatus> storage;
};

// Called on the loop thread, never from within the Fingerprinter's constructor. A sink may begin to Stop the
// Fingerprinter from here, but not destroy it.
struct FingerprintSink {
  std::function<void(const ProbeResult&)> on_probe;
  // After each reading (and after the on_probe that led to it).
  // OK: facts as read now, with their computed class. Not OK: the plugin is refused, and why.
  std::function<void(absl::StatusOr<PluginFacts>, const std::string& computed_class)> on_facts;
  // Whether volumes are held through this plugin under the facts known before: then another node id is
  // refused (teardown keeps using the old one).
  std::function<bool()> holds_volumes;
};

struct FingerprintOptions {
  std::string plugin_id;
  bool expect_node = true;          // kind node or monolith: serves Node
  bool expect_controller = true;    // kind controller or monolith
  Duration interval{};              // between probes of a plugin that is well
  Duration timeout{};               // of each RPC
  Duration fingerprint_interval{};  // between readings of the facts; zero: at start and recovery only
  // What an earlier instance was, if there was one: differences from it are events, another driver name
  // is refused.
  std::optional<PluginFacts> known;
};

class Fingerprinter {
 public:
  Fingerprinter(asio::any_io_executor executor, FingerprintOptions options, std::shared_ptr<CsiClient> client,
                FingerprintSink sink, EventLog& events);
  // Stop() must have ended.
  ~Fingerprinter();

  // Reads the facts again soon, at most once a second: what was read may have changed.
  void ReadAgain();

  // Cancels the call in flight and waits for it (about a millisecond). No sink function is called once this
  // has begun.
  [[nodiscard]] Awaitable<void> Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace berth
