// ControllerPublishVolume and its reverse, through a controller of the driver that runs here, in turn with
// other calls (controller/volume_call_queue.h). Loop thread.
//
// Errors are the plugin's, with its name and the call's in front, without secrets; UNAVAILABLE or
// FAILED_PRECONDITION if no controller can be called now; and those of reading the secrets.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>

#include "base/clock.h"
#include "base/task_scope.h"
#include "controller/controller_access.h"
#include "mounter/mounter.h"

namespace berth {

struct AttachCall {
  std::string plugin_id;
  std::string volume_id;
  std::string node_id;
  // Of an attach alone.
  VolumeUse use;
  bool readonly = false;
  std::map<std::string, std::string> volume_context;

  SecretsReference secrets_reference;
};

class Attacher {
 public:
  // What is given outlives this, and its calls.
  Attacher(ControllerAccess& access, Mounter& mounter) : access_(access), mounter_(mounter) {}

  // OK where a controller can be called now.
  [[nodiscard]] absl::Status Ready(const std::string& plugin_id) const;
  // The publish_context.
  [[nodiscard]] Awaitable<absl::StatusOr<std::map<std::string, std::string>>> Attach(AttachCall call,
                                                                                     TimePoint deadline);
  [[nodiscard]] Awaitable<absl::Status> Detach(AttachCall call, TimePoint deadline);

 private:
  [[nodiscard]] absl::StatusOr<ControllerAccess::Controller> Find(const std::string& plugin_id) const;

  ControllerAccess& access_;
  Mounter& mounter_;
};

}  // namespace berth
