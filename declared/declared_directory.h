// The volumes that files in volumes.d declare, as the node's API shows them.
//
// A narrow interface of this folder's own, which declared/ implements. Loop thread only. It outlives the
// NodeApi that is given it.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/task_scope.h"
#include "berth/v1/node.pb.h"
#include "mounter/volume_types.h"

namespace berth {

// One file of volumes.d.
struct DeclaredView {
  std::string file;  // its path
  // What it asks for. Without a plugin and a volume where the file is broken.
  v1::PublishVolumeRequest request;
  std::string state;       // for people: "published", "waiting: plugin nfs is not ready"
  std::string last_error;  // of the last try; empty: there was none, or it succeeded
  std::optional<WallTime> next_retry_at = {};
  std::string error_in_file = {};  // every mistake in the file, a line each; empty: it is sound
  std::string path = {};           // where it is mounted too; empty: nowhere
  // It is published, and mounted at its path where it has one: also where its file was broken since.
  bool published = false;
  // The volume is attached to this node for it, or may be.
  bool attached = false;
  // Its file is gone, or declares another one by now: what is left of it is being released.
  bool withdrawn = false;
};

// What a reload found, by the names of files.
struct DeclaredReload {
  std::vector<std::string> declared;   // new
  std::vector<std::string> withdrawn;  // their file is gone: they are being released
  std::vector<std::string> changed;    // published again, or mounted at another path
  // All that is wrong with a file, a line each: "/etc/berth/volumes.d/data.toml:4: colour: unknown key".
  std::vector<std::string> broken;
};

class DeclaredDirectory {
 public:
  virtual ~DeclaredDirectory() = default;

  // One of each file, by its name.
  [[nodiscard]] virtual std::vector<DeclaredView> List() const = 0;

  // A caller is about to unpublish this: what a file declares of it stays released until a reload. Never
  // blocks.
  virtual void OnUnpublish(const UnpublishRequest& request) = 0;
  // Grows when List may say something else.
  [[nodiscard]] virtual uint64_t version() const = 0;
  // Waits until version() is not `seen` any more, or `deadline`.
  [[nodiscard]] virtual Awaitable<void> WaitChange(uint64_t seen, TimePoint deadline) const = 0;

  // What an operator should look at besides the files' own errors, a sentence each.
  [[nodiscard]] virtual std::vector<std::string> Problems() const = 0;

  // Reads volumes.d afresh and begins to bring the volumes to what it says; what did not change is not
  // touched. ABORTED: a reload is under way. Errors: the directory cannot be read; nothing was changed then.
  [[nodiscard]] virtual Awaitable<absl::StatusOr<DeclaredReload>> Reload(TimePoint deadline) = 0;
};

}  // namespace berth
