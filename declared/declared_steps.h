// Carries out what declared.h decides for one declared volume: notes, attach and detach, publish and
// unpublish. Loop thread.
#pragma once

#include <absl/status/status.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/event_log.h"
#include "base/task_scope.h"
#include "controller/controller_access.h"
#include "controller/controller_directory.h"
#include "declared/attach.h"
#include "declared/declared.h"
#include "declared/declared_records.h"
#include "mounter/mounter.h"

namespace berth {

// One use, from the first reading of its file until everything that was done for it is undone. Shared by the
// coroutine that takes its steps and by those who show it.
struct DeclaredUseState {
  explicit DeclaredUseState(asio::any_io_executor executor) : changed(std::move(executor)) {}

  DeclaredKey key;
  std::string file;  // its name; empty of what only the mounter knows
  DeclaredEntry state;
  DeclaredStep step;
  std::string last_error;
  int failures = 0;
  std::optional<DeclaredAction> last_done;
  bool running = false;
  // As the mounter had it at the last step: published, and mounted at its path.
  bool published = false;
  // Grows when something else is wanted of it than before.
  uint64_t will_version = 0;
  // Grows when there may be something to do.
  uint64_t version = 0;
  Condition changed;

  void Wake() {
    ++version;
    changed.NotifyAll();
  }
};

class DeclaredSteps {
 public:
  // What is given outlives this.
  DeclaredSteps(DeclaredRecords records, Mounter& mounter, ControllerDirectory& plugins,
                ControllerAccess& access, EventLog& events)
      : records_(std::move(records)),
        mounter_(mounter),
        plugins_(plugins),
        access_(access),
        events_(events),
        attacher_(access, mounter) {}

  // What is known of the plugin, its controller and the mounter's books; not of other entries.
  [[nodiscard]] DeclaredFacts Gather(const DeclaredUseState& entry) const;

  // Why a use that is being released is still there: what runs or hangs, or what went wrong last.
  [[nodiscard]] std::string WhyNotReleased(const DeclaredUseState& entry) const;

  // One try. The entry's state says what has come of it. An error: it was not done, or not in time.
  [[nodiscard]] Awaitable<absl::Status> Perform(std::shared_ptr<DeclaredUseState> entry,
                                                DeclaredAction action);

  // From now on directories at paths stay as they are: the machine is being shut down, and nothing must be
  // written there before the volumes are back.
  void KeepPaths() { keep_paths_ = true; }

  // The id of its plugin; empty, and `why`, where it is not known yet.
  [[nodiscard]] std::string PluginIdOf(const DeclaredUseState& entry, std::string* why) const;

 private:
  [[nodiscard]] Awaitable<absl::Status> Write(DeclaredRecord record);
  [[nodiscard]] Awaitable<absl::Status> Remember(std::shared_ptr<DeclaredUseState> entry);
  [[nodiscard]] Awaitable<absl::Status> NoteRelease(std::shared_ptr<DeclaredUseState> entry);
  [[nodiscard]] Awaitable<absl::Status> Forget(std::shared_ptr<DeclaredUseState> entry);
  [[nodiscard]] Awaitable<absl::Status> Attach(std::shared_ptr<DeclaredUseState> entry);
  [[nodiscard]] Awaitable<absl::Status> Detach(std::shared_ptr<DeclaredUseState> entry);
  [[nodiscard]] Awaitable<absl::Status> Publish(std::shared_ptr<DeclaredUseState> entry);
  [[nodiscard]] Awaitable<absl::Status> Unpublish(std::shared_ptr<DeclaredUseState> entry);
  void Emit(const DeclaredUseState& entry, const std::string& type, std::string_view what);

  DeclaredRecords records_;
  Mounter& mounter_;
  ControllerDirectory& plugins_;
  ControllerAccess& access_;
  EventLog& events_;
  Attacher attacher_;
  bool keep_paths_ = false;
};

}  // namespace berth
