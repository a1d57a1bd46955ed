#include "declared/declared_steps.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/multiple_exceptions.hpp>
#include <cerrno>
#include <exception>
#include <optional>

#include "base/blocking.h"
#include "base/status.h"
#include "controller/plugin_choice.h"

namespace berth {
namespace {

constexpr Duration kNoteWithin = std::chrono::seconds(30);
// One try; a step that takes longer goes on in the mounter, and the next try joins it.
constexpr Duration kTryWithin = std::chrono::minutes(2);

bool DiskIsFull(const absl::Status& status) {
  const std::optional<int> error = ErrnoOf(status);
  return error == ENOSPC || error == EDQUOT;
}

// All uses of a volume share one attachment, so it cannot be read-only because one of them is.
bool OnlyForReading(::csi::v1::VolumeCapability::AccessMode::Mode mode) {
  using Mode = ::csi::v1::VolumeCapability::AccessMode;
  return mode == Mode::SINGLE_NODE_READER_ONLY || mode == Mode::MULTI_NODE_READER_ONLY;
}

}  // namespace

DeclaredFacts DeclaredSteps::Gather(const DeclaredUseState& entry) const {
  DeclaredFacts facts;
  facts.leaving = MessageOf(mounter_.CheckNotShuttingDown());
  const PluginMap& plugins = plugins_.plugins();
  const std::string plugin_id = PluginIdOf(entry, &facts.plugin_why);
  if (const auto plugin = plugins.find(plugin_id); plugin != plugins.end()) {
    const PluginSnapshot& snapshot = plugin->second;
    facts.plugin_ready = snapshot.registered && !snapshot.paused && !snapshot.draining && snapshot.facts;
    facts.needs_attach = snapshot.facts.has_value() && snapshot.facts->NeedsAttach();
    if (!facts.plugin_ready) {
      facts.plugin_why = fmt::format("plugin {} is {}{}{}", plugin_id, PluginStateName(snapshot.state),
                                     snapshot.reason.empty() ? "" : ": ", Printable(snapshot.reason, 512));
    }
  } else if (!plugin_id.empty()) {
    facts.plugin_why = MessageOf(NoSuchPlugin(plugins, plugin_id));
  }
  const absl::Status controller = attacher_.Ready(plugin_id);
  facts.controller_ready = controller.ok();
  facts.controller_why = MessageOf(controller);

  if (const auto view = mounter_.Find(plugin_id, entry.key.volume_id)) {
    facts.held_by =
        view->still_in_use ? fmt::format("what uses it ({})", view->last_error) : "what is left of it";
    for (const PublicationView& publication : view->publications) {
      if (publication.consumer == entry.key.consumer && publication.name == entry.key.name) {
        facts.publication = publication.state;
        facts.being_unpublished =
            publication.state == PublicationState::kUnpublishing && !publication.remount_after_undo;
        facts.lost = publication.uncertain || !publication.dead.empty();
        if (entry.state.use.has_value()) {
          const PublishedPath& path = entry.state.use->request.path;
          facts.path_pending = publication.path != path || (!path.path.empty() && !publication.path_mounted);
          facts.path_error = publication.path_error;
        }
        facts.declared = publication.origin == Origin::kDeclared;
        facts.blocked = publication.blocked ? publication.blocked->text : "";
      } else {
        facts.held_by = Printable(publication.consumer, 256);
      }
    }
  }
  return facts;
}

std::string DeclaredSteps::WhyNotReleased(const DeclaredUseState& entry) const {
  std::string why = entry.step.state;
  const auto add = [&why](std::string_view more) {
    if (!more.empty() && why.find(more) == std::string::npos) why += fmt::format(": {}", more);
  };
  std::string no_plugin;
  const auto view = mounter_.Find(PluginIdOf(entry, &no_plugin), entry.key.volume_id);
  if (view && view->stuck) {
    add(fmt::format("{} does not come back", view->stuck->on));
  } else if (view && !view->running.empty() && view->running_since) {
    add(fmt::format(
        "{} has run for {} s", view->running,
        std::chrono::duration_cast<std::chrono::seconds>(WallClock::now() - *view->running_since).count()));
  }
  add(entry.last_error);
  if (!view) return why;
  for (const PublicationView& publication : view->publications) add(publication.last_error);
  add(view->last_error);
  return why;
}

std::string DeclaredSteps::PluginIdOf(const DeclaredUseState& entry, std::string* why) const {
  if (entry.state.record.has_value()) return entry.state.record->plugin_id();
  const absl::StatusOr<std::string> id = ResolveNodePlugin(plugins_.plugins(), entry.key.plugin);
  if (id.ok()) return *id;
  *why = MessageOf(id.status());
  return "";
}

Awaitable<absl::Status> DeclaredSteps::Perform(std::shared_ptr<DeclaredUseState> entry,
                                               DeclaredAction action) {
  switch (action) {
    case DeclaredAction::kNothing:
    case DeclaredAction::kWait:
    case DeclaredAction::kGone:
      break;
    case DeclaredAction::kRemember:
      co_return co_await Remember(entry);
    case DeclaredAction::kNoteRelease:
      co_return co_await NoteRelease(entry);
    case DeclaredAction::kAttach:
      co_return co_await Attach(entry);
    case DeclaredAction::kPublish:
      co_return co_await Publish(entry);
    case DeclaredAction::kUnpublish:
      co_return co_await Unpublish(entry);
    case DeclaredAction::kDetach:
      co_return co_await Detach(entry);
    case DeclaredAction::kForget:
      co_return co_await Forget(entry);
  }
  co_return absl::OkStatus();
}

Awaitable<absl::Status> DeclaredSteps::Write(DeclaredRecord record) {
  auto write = [records = records_, record = std::move(record)] { return records.Write(record); };
  co_return co_await RunBlocking("write the record of a declared volume", std::move(write),
                                 Clock::now() + kNoteWithin);
}

Awaitable<absl::Status> DeclaredSteps::Remember(std::shared_ptr<DeclaredUseState> entry) {
  std::string why;
  DeclaredRecord record;
  record.set_plugin_id(PluginIdOf(*entry, &why));
  if (record.plugin_id().empty() || !entry->state.use.has_value()) co_return absl::UnavailableError(why);
  record.set_file(entry->file);
  record.set_plugin(entry->key.plugin);
  record.set_volume_id(entry->key.volume_id);
  record.set_consumer(entry->key.consumer);
  record.set_name(entry->key.name);
  record.set_mount_digest(entry->state.use->mount_digest);
  record.set_path(entry->state.use->request.path.path);
  *record.mutable_secrets_reference() = entry->state.use->request.secrets_reference;
  BERTH_CO_RETURN_IF_ERROR(co_await Write(record));
  entry->state.record = std::move(record);
  co_return absl::OkStatus();
}

Awaitable<absl::Status> DeclaredSteps::NoteRelease(std::shared_ptr<DeclaredUseState> entry) {
  if (!entry->state.record.has_value()) co_return absl::OkStatus();
  DeclaredRecord record = *entry->state.record;
  // As it is now, and remembered: what is seen of the mounter's books may change while it is written.
  entry->state.released = IsReleased(entry->state, Gather(*entry));
  record.set_released_in_boot(entry->state.released ? entry->state.boot_id : "");
  BERTH_CO_RETURN_IF_ERROR(co_await Write(record));
  entry->state.record = std::move(record);
  co_return absl::OkStatus();
}

Awaitable<absl::Status> DeclaredSteps::Forget(std::shared_ptr<DeclaredUseState> entry) {
  const std::string path = entry->state.record.has_value() ? entry->state.record->path() : "";
  if (!path.empty() && !keep_paths_) {
    const absl::Status freed = co_await mounter_.FreePath(path, Clock::now() + kNoteWithin);
    if (absl::IsDeadlineExceeded(freed)) co_return freed;
    if (!freed.ok()) SPDLOG_WARN("{}: left as it is: {}", Printable(path), MessageOf(freed));
  }
  auto remove = [records = records_, key = entry->key] { return records.Remove(key); };
  BERTH_CO_RETURN_IF_ERROR(
      co_await RunBlocking("forget a declared volume", std::move(remove), Clock::now() + kNoteWithin));
  entry->state.record.reset();
  entry->state.was_published = false;
  entry->state.released = false;
  co_return absl::OkStatus();
}

Awaitable<absl::Status> DeclaredSteps::Attach(std::shared_ptr<DeclaredUseState> entry) {
  if (!entry->state.record.has_value() || !entry->state.use.has_value()) co_return absl::OkStatus();
  DeclaredRecord record = *entry->state.record;
  const auto plugin = plugins_.plugins().find(record.plugin_id());
  const std::string node_id =
      plugin != plugins_.plugins().end() && plugin->second.facts ? plugin->second.facts->node_id : "";
  if (node_id.empty()) {
    co_return absl::UnavailableError(fmt::format(
        "plugin {} has not reported a node id, so the volume cannot be attached", record.plugin_id()));
  }
  // The node was another one then: what was attached to that is detached first.
  if (record.attach_sent() && record.node_id() != node_id) BERTH_CO_RETURN_IF_ERROR(co_await Detach(entry));
  const PublishRequest request = entry->state.use->request;
  record = *entry->state.record;
  record.set_attach_sent(true);
  record.set_node_id(node_id);
  *record.mutable_secrets_reference() = request.secrets_reference;
  // Before it is sent: it is undone also by a berthd that never sees the answer.
  BERTH_CO_RETURN_IF_ERROR(co_await Write(record));
  entry->state.record = record;
  AttachCall call{.plugin_id = record.plugin_id(),
                  .volume_id = request.volume_id,
                  .node_id = node_id,
                  .use = request.use,
                  .readonly = OnlyForReading(request.use.access_mode),
                  .volume_context = request.volume_context,
                  .secrets_reference = request.secrets_reference};
  auto context = co_await attacher_.Attach(std::move(call), Clock::now() + kTryWithin);
  BERTH_CO_RETURN_IF_ERROR(context.status());
  *record.mutable_publish_context()->mutable_values() = {context->begin(), context->end()};
  BERTH_CO_RETURN_IF_ERROR(co_await Write(record));
  entry->state.record = std::move(record);
  Emit(*entry, "volume.attached", fmt::format("attached to node {}", Printable(node_id, 256)));
  co_return absl::OkStatus();
}

Awaitable<absl::Status> DeclaredSteps::Detach(std::shared_ptr<DeclaredUseState> entry) {
  if (!entry->state.record.has_value()) co_return absl::OkStatus();
  DeclaredRecord record = *entry->state.record;
  AttachCall call{.plugin_id = record.plugin_id(),
                  .volume_id = record.volume_id(),
                  .node_id = record.node_id(),
                  .use = {},
                  .readonly = false,
                  .volume_context = {},
                  .secrets_reference = record.secrets_reference()};
  BERTH_CO_RETURN_IF_ERROR(co_await attacher_.Detach(std::move(call), Clock::now() + kTryWithin));
  record.set_attach_sent(false);
  record.clear_publish_context();
  const absl::Status noted = co_await Write(record);
  // On a full disk it is released nevertheless, and its record removed, which needs no space. A berthd that
  // finds the old record after a crash detaches once more, which changes nothing.
  if (!noted.ok() && !DiskIsFull(noted)) co_return noted;
  if (!noted.ok()) {
    SPDLOG_WARN("declared volume {}: detached, but that is not noted: {}", Printable(record.volume_id(), 256),
                MessageOf(noted));
  }
  const std::string node_id = std::exchange(*record.mutable_node_id(), "");
  entry->state.record = std::move(record);
  Emit(*entry, "volume.detached", fmt::format("detached from node {}", Printable(node_id, 256)));
  co_return absl::OkStatus();
}

Awaitable<absl::Status> DeclaredSteps::Publish(std::shared_ptr<DeclaredUseState> entry) {
  using boost::asio::experimental::awaitable_operators::operator||;
  if (!entry->state.record.has_value() || !entry->state.use.has_value()) co_return absl::OkStatus();
  PublishRequest request = entry->state.use->request;
  request.plugin_id = entry->state.record->plugin_id();
  if (entry->state.record->has_publish_context()) {
    const auto& context = entry->state.record->publish_context().values();
    request.publish_context.emplace(context.begin(), context.end());
  }
  if (entry->state.record->path() != request.path.path) {
    // The mounter frees the one before.
    DeclaredRecord record = *entry->state.record;
    record.set_path(request.path.path);
    BERTH_CO_RETURN_IF_ERROR(co_await Write(record));
    entry->state.record = std::move(record);
  }
  BERTH_CO_RETURN_IF_ERROR(access_.MayPublish(request.plugin_id, request.volume_id));
  const ControllerAccess::VolumeUseLock hold = access_.LockForPublish(request.plugin_id, request.volume_id);
  const bool anew = std::exchange(entry->state.tell_anew, false);
  const TimePoint deadline = Clock::now() + kTryWithin;
  // Its withdrawal does not wait for a plugin that hangs: the mounter reverses the work.
  auto other_will = [entry, will = entry->will_version] { return entry->will_version != will; };
  absl::Status done;
  try {
    auto first = co_await (mounter_.Publish(std::move(request), deadline) ||
                           entry->changed.WaitUntil(std::move(other_will), deadline));
    done = first.index() == 0 ? std::get<0>(first).status()
                              : absl::DeadlineExceededError("not published in time; it goes on");
  } catch (const asio::multiple_exceptions& both) {
    // A cancellation ends both, and is one.
    std::rethrow_exception(both.first_exception());
  }
  if (anew && absl::IsAlreadyExists(done)) {
    SPDLOG_INFO("declared volume {}: what its file says now takes effect with its next mount",
                Printable(entry->key.volume_id, 256));
    co_return absl::OkStatus();
  }
  // If it is gone by now, a caller has released it.
  if (done.ok()) entry->state.was_published = true;
  co_return done;
}

Awaitable<absl::Status> DeclaredSteps::Unpublish(std::shared_ptr<DeclaredUseState> entry) {
  std::string why;
  UnpublishRequest request{.plugin_id = PluginIdOf(*entry, &why),
                           .volume_id = entry->key.volume_id,
                           .consumer = entry->key.consumer,
                           .name = entry->key.name};
  if (request.plugin_id.empty()) request.plugin_id = entry->key.plugin;
  const absl::StatusOr<UnpublishResult> result =
      co_await mounter_.Unpublish(std::move(request), Clock::now() + kTryWithin);
  if (result.ok()) entry->state.was_published = false;
  co_return result.status();
}

void DeclaredSteps::Emit(const DeclaredUseState& entry, const std::string& type, std::string_view what) {
  Event event{.type = type};
  event.plugin_id = entry.state.record.has_value() ? entry.state.record->plugin_id() : entry.key.plugin;
  event.volume_id = entry.key.volume_id;
  event.consumer = entry.key.consumer;
  event.message = fmt::format("volume {} was {}", Printable(entry.key.volume_id, 256), what);
  events_.Append(std::move(event));
}

}  // namespace berth
