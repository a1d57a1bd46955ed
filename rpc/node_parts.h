// What the API of a node stands on, and how its methods answer.
//
// Made by main; loop thread only. All parts outlive the API.
#pragma once

#include <absl/status/statusor.h>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "controller/controller_access.h"
#include "controller/controller_calls.h"
#include "declared/declared_directory.h"
#include "mounter/mounter.h"
#include "rpc/node_drainer.h"
#include "rpc/plugin_control.h"
#include "rpc/scheduler_directory.h"

namespace berth {

struct NodeParts {
  PluginControl& control;
  ControllerAccess& access;
  ControllerCalls& controller_calls;
  Mounter& mounter;
  DeclaredDirectory& declared;
  NodeDrainer& drainer;
  SchedulerDirectory& scheduler;
  EventLog& events;
};

template <class T>
using ApiAnswer = Awaitable<absl::StatusOr<T>>;

}  // namespace berth
