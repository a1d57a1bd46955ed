// What the parts of the link to the scheduler share: what berthd gave it, what outlives a stream, and the
// stream that is up.
//
//   uplink.h           dials, keeps one stream up, greets
//   link_operations.h  what the scheduler asks for
//   link_asks.h        what is asked of the scheduler
//   node_objects.h     what is reported of this node
//
// Owned by the Uplink, and outlives the other parts; loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "berth/v1/scheduler.pb.h"
#include "controller/controller_directory.h"
#include "mounter/mounter.h"
#include "rpc/node_api.h"
#include "rpc/plugin_control.h"
#include "rpc/uplink/dial_schedule.h"
#include "rpc/uplink/link_lease.h"
#include "rpc/uplink/link_rows.h"
#include "rpc/uplink/link_session.h"
#include "rpc/uplink/link_stream.h"
#include "rpc/uplink/operation_runner.h"

namespace berth {

struct UplinkOptions {
  std::vector<std::string> addresses;  // at least one
  std::string node_id;
  std::string version;
  v1::LeasePolicy on_lease_expiry = v1::KEEP;
  std::set<v1::NodeState::Right> may = {v1::NodeState::VOLUMES};
  DialLimits dial = {};
  LinkTimes times = {};
  Duration dial_within = std::chrono::seconds(20);
  Duration node_state_every = std::chrono::seconds(5);
};

// What it joins.
struct UplinkParts {
  LinkDialer& dialer;
  LinkLease& lease;
  LinkRows& rows;
  NodeApi& api;
  PluginControl& plugins;
  ControllerDirectory& controllers;
  Mounter& mounter;
  EventLog& events;
  CallController controller;
};

struct UplinkContext {
  UplinkContext(const asio::any_io_executor& loop, UplinkOptions opts, UplinkParts joined);
  UplinkContext(const UplinkContext&) = delete;
  UplinkContext& operator=(const UplinkContext&) = delete;

  // There may be something to send, or to read in the state.
  void Wake();
  // Whether a stream is up that the scheduler has welcomed.
  [[nodiscard]] bool IsGreeted() const;
  // Returns once the row is on the disk: what the scheduler has once seen must not be another one after a
  // crash. `value` is asked for at each try.
  [[nodiscard]] Awaitable<void> PutUntilDone(std::string key, std::function<std::string()> value);

  asio::any_io_executor executor;
  UplinkOptions options;
  UplinkParts parts;
  LinkState state;
  LinkSession* session = nullptr;  // of the stream that is up
  v1::LinkStatus status;           // what does not follow from the rest
  Condition changed;               // answers, the node, the session
};

}  // namespace berth
