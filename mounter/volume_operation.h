// One request for one volume, waiting or running in the volume's queue, and its answer.
//
// Shared by the volume's actor and the callers that wait for it: an identical request joins instead of
// being queued again. Loop thread only.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "base/task_scope.h"
#include "mounter/volume_record.h"
#include "mounter/volume_types.h"

namespace berth {

struct ExpandRequest {
  int64_t required_bytes = 0;
  int64_t limit_bytes = 0;
  std::map<std::string, std::string> secrets;

  bool operator==(const ExpandRequest&) const = default;
};

using VolumeRequest = std::variant<PublishRequest, UnpublishRequest, ExpandRequest>;

struct VolumeOperation {
  VolumeOperation(asio::any_io_executor executor, VolumeRequest what, TimePoint until)
      : request(std::move(what)), wanted_until(until), finished(std::move(executor)) {}

  VolumeRequest request;
  // The latest of its callers' deadlines. A publish that has not begun by then is not begun.
  TimePoint wanted_until;

  // Of a publish: who asked for it may not have it begun any more, for this reason. Empty: it may begin.
  std::string forward_blocked;

  bool done = false;
  absl::Status status;
  std::string target_path;      // of a publish
  bool undone = false;          // of an unpublish: there was something to undo
  bool still_in_use = false;    // of an unpublish: see UnpublishResult
  std::string used_by;          // of an unpublish: see UnpublishResult
  bool aborted = false;         // of an unpublish: see UnpublishResult
  bool detached = false;        // of an unpublish: see UnpublishResult
  bool without_plugin = false;  // of an unpublish: see UnpublishResult
  int64_t capacity_bytes = 0;   // of an expand
  Condition finished;

  void Finish(absl::Status result) {
    done = true;
    status = std::move(result);
    finished.NotifyAll();
  }
};

// Of a request that was not begun.
[[nodiscard]] inline absl::Status NotBegun(const std::string& why) {
  return absl::UnavailableError("not begun: " + why);
}

// Whether the unpublish is about the publication.
[[nodiscard]] inline bool Concerns(const UnpublishRequest& request, const PublicationKey& key) {
  return request.consumer == key.consumer && (request.all_names || request.name == key.name);
}

}  // namespace berth
