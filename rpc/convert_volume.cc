#include "rpc/convert_volume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/status.h"
#include "mounter/volume_advice.h"
#include "rpc/convert.h"

namespace berth {
namespace {

constexpr char kHidden[] = "(hidden)";
// Of one list in an explanation.
constexpr int kListLimit = 200;
// A client takes messages of 4 MiB.
constexpr size_t kFindingBytes = size_t{3} << 20;
// A few commands, each with an id of 4 KiB.
constexpr size_t kAdviceBytes = size_t{32} << 10;

v1::VolumeState StateOf(PublicationState state) {
  switch (state) {
    case PublicationState::kPublishing:
      return v1::PUBLISHING;
    case PublicationState::kPublished:
      return v1::PUBLISHED;
    case PublicationState::kUnpublishing:
      return v1::UNPUBLISHING;
  }
  return v1::VOLUME_STATE_UNKNOWN;
}

v1::VolumeState StateOf(StageState state) {
  switch (state) {
    case StageState::kAbsent:
      return v1::VOLUME_STATE_UNKNOWN;
    case StageState::kStaging:
      return v1::STAGING;
    case StageState::kStaged:
      return v1::STAGED;
    case StageState::kUnstaging:
      return v1::UNSTAGING;
  }
  return v1::VOLUME_STATE_UNKNOWN;
}

// The furthest: a publication is further than any staging, a published one the furthest of all.
v1::VolumeState FurthestState(const VolumeView& volume) {
  for (const PublicationState state :
       {PublicationState::kPublished, PublicationState::kPublishing, PublicationState::kUnpublishing}) {
    const bool any = std::any_of(volume.publications.begin(), volume.publications.end(),
                                 [state](const PublicationView& view) { return view.state == state; });
    if (any) return StateOf(state);
  }
  return StateOf(volume.stage_state);
}

v1::PublicationOrigin OriginOf(Origin origin) {
  switch (origin) {
    case Origin::kCaller:
      return v1::CALLER;
    case Origin::kDeclared:
      return v1::DECLARED;
    case Origin::kScheduler:
      return v1::SCHEDULER;
  }
  return v1::CALLER;
}

v1::FindingSeverity SeverityOf(Finding::Severity severity) {
  switch (severity) {
    case Finding::Severity::kInfo:
      return v1::INFO;
    case Finding::Severity::kWarning:
      return v1::WARNING;
    case Finding::Severity::kError:
      return v1::ERROR;
  }
  return v1::WARNING;
}

v1::AccessType TypeOf(AccessType type) { return type == AccessType::kBlock ? v1::BLOCK : v1::MOUNT; }

template <class Repeated>
void FillFlags(const std::vector<std::string>& flags, bool show, Repeated* to) {
  if (!show) {
    if (!flags.empty()) to->Add(kHidden);
    return;
  }
  for (const std::string& flag : flags) to->Add(ToUtf8(flag));
}

v1::BlockedReason ReasonOf(Blocked::Reason reason) {
  switch (reason) {
    case Blocked::Reason::kRestart:
      return v1::BLOCKED_SINCE_RESTART;
    case Blocked::Reason::kNoLease:
      return v1::BLOCKED_WITHOUT_LEASE;
    case Blocked::Reason::kUnconfirmed:
      break;
  }
  return v1::BLOCKED_UNCONFIRMED;
}

v1::Publication PublicationOf(const PublicationView& view) {
  v1::Publication to;
  to.set_consumer(ToUtf8(view.consumer));
  to.set_name(ToUtf8(view.name));
  to.set_target_path(ToUtf8(view.target_path));
  to.set_readonly(view.readonly);
  to.set_state(StateOf(view.state));
  to.set_uncertain(view.uncertain);
  to.set_last_error(Printable(view.last_error));
  if (view.published_at) *to.mutable_published_at() = ToProto(*view.published_at);
  to.set_origin(OriginOf(view.origin));
  to.set_remount(view.remount);
  to.set_ephemeral(view.ephemeral);
  if (IsSet(view.life)) *to.mutable_life() = view.life;
  to.set_awaiting_secrets(view.awaiting_secrets);
  if (view.blocked) {
    to.set_blocked(Printable(view.blocked->text));
    to.set_blocked_reason(ReasonOf(view.blocked->reason));
  }
  to.set_dead(Printable(view.dead));
  to.set_hung(Printable(view.hung));
  to.set_writes_refused(Printable(view.writes_refused));
  to.set_path(Printable(view.path.path));
  to.set_path_mounted(view.path_mounted);
  to.set_path_error(Printable(view.path_error));
  return to;
}

v1::KernelMount MountOf(const KernelMount& mount, bool show_options) {
  v1::KernelMount to;
  to.set_target(ToUtf8(mount.target));
  to.set_source(ToUtf8(mount.source));
  to.set_fs_type(ToUtf8(mount.fs_type));
  if (!mount.options.empty()) to.set_options(show_options ? ToUtf8(mount.options) : kHidden);
  to.set_id(mount.id);
  return to;
}

v1::MountHolder HolderOf(const MountHolder& holder) {
  v1::MountHolder to;
  to.set_pid(holder.pid);
  to.set_command(Printable(holder.command));
  to.set_consumer(ToUtf8(holder.consumer));
  to.set_how(Printable(holder.how));
  if (holder.uid.has_value()) to.set_uid(*holder.uid);
  return to;
}

v1::RpcTrace TraceOf(const RpcTrace& trace) {
  v1::RpcTrace to;
  to.set_rpc(ToUtf8(trace.rpc));
  *to.mutable_started_at() = ToProto(trace.started_at);
  *to.mutable_took() = ToProto(trace.took);
  to.set_code(std::string(CodeName(trace.code)));
  to.set_error(Printable(trace.error));
  return to;
}

v1::Finding FindingOf(const Finding& finding) {
  v1::Finding to;
  to.set_severity(SeverityOf(finding.severity));
  to.set_code(ToUtf8(finding.code));
  to.set_plugin_id(ToUtf8(finding.plugin_id));
  to.set_volume_id(ToUtf8(finding.volume_id));
  to.set_consumer(ToUtf8(finding.consumer));
  to.set_path(ToUtf8(finding.path));
  to.set_text(Printable(finding.text));
  to.set_repair(Printable(finding.repair));
  to.set_repaired(finding.repaired);
  to.set_repair_error(Printable(finding.repair_error));
  to.set_advice(Printable(finding.advice, kAdviceBytes));
  return to;
}

std::string ErrorOf(const DeclaredView& file) {
  if (file.error_in_file.empty()) return file.last_error;
  return fmt::format("{}", fmt::join(LinesOf(file.error_in_file), "; "));
}

}  // namespace

v1::Volume ToProto(const VolumeView& volume, bool show_options) {
  v1::Volume to;
  to.set_plugin_id(ToUtf8(volume.plugin_id));
  to.set_volume_id(ToUtf8(volume.volume_id));
  to.set_state(FurthestState(volume));
  to.set_uncertain(volume.uncertain);
  to.set_awaiting_secrets(volume.awaiting_secrets);
  v1::Capability& capability = *to.mutable_capability();
  capability.set_access_mode(static_cast<v1::AccessMode>(volume.use.access_mode));
  capability.set_access_type(TypeOf(volume.use.access_type));
  capability.set_fs_type(ToUtf8(volume.use.fs_type));
  FillFlags(volume.use.mount_flags, show_options, capability.mutable_mount_flags());
  capability.set_volume_mount_group(ToUtf8(volume.use.volume_mount_group));
  to.set_staging_path(ToUtf8(volume.staging_path));
  for (const PublicationView& view : volume.publications) *to.add_publications() = PublicationOf(view);
  to.set_last_error(Printable(volume.last_error));
  if (volume.next_retry_at) *to.mutable_next_retry_at() = ToProto(*volume.next_retry_at);
  to.set_running(ToUtf8(volume.running));
  if (volume.running_since) *to.mutable_running_since() = ToProto(*volume.running_since);
  if (volume.stuck) {
    to.mutable_stuck()->set_on(Printable(volume.stuck->on));
    to.mutable_stuck()->set_pid(volume.stuck->pid);
    *to.mutable_stuck()->mutable_since() = ToProto(volume.stuck->since);
    to.mutable_stuck()->set_plugin_hangs(volume.stuck->plugin_hangs);
  }
  to.set_pending_expansion_bytes(volume.pending_expansion_bytes);
  to.set_still_in_use(volume.still_in_use);
  to.set_plugin_missing(volume.plugin_missing);
  if (volume.without_plugin) {
    to.mutable_without_plugin()->set_requested_by(Printable(volume.without_plugin->requested_by));
    *to.mutable_without_plugin()->mutable_at() = ToProto(volume.without_plugin->at);
  }
  to.set_failures(volume.failures);
  to.set_rebuilt(volume.rebuilt);
  to.set_driver_name(ToUtf8(volume.driver_name));
  to.set_driver_version(Printable(volume.driver_version));
  to.set_label(volume.label);
  if (volume.condition) *to.mutable_condition() = ToProto(*volume.condition);
  to.set_advice(Printable(AdviceFor(volume), kAdviceBytes));
  if (volume.aborted_at) *to.mutable_aborted_at() = ToProto(*volume.aborted_at);
  if (volume.detached_at) *to.mutable_detached_at() = ToProto(*volume.detached_at);
  return to;
}

v1::ConsumerMount ToProto(const ConsumerMount& mount, bool show_options) {
  v1::ConsumerMount to;
  to.set_plugin_id(ToUtf8(mount.plugin_id));
  to.set_volume_id(ToUtf8(mount.volume_id));
  to.set_consumer(ToUtf8(mount.consumer));
  to.set_name(ToUtf8(mount.name));
  to.set_source_path(ToUtf8(mount.source_path));
  to.set_access_type(TypeOf(mount.access_type));
  to.set_readonly(mount.readonly);
  to.set_fs_type(ToUtf8(mount.fs_type));
  FillFlags(mount.mount_flags, show_options, to.mutable_mount_flags());
  to.set_propagation(ToUtf8(mount.propagation));
  to.set_device_major(mount.device_major);
  to.set_device_minor(mount.device_minor);
  return to;
}

v1::ExplainVolumeResponse ToProto(const VolumeExplanation& explanation, bool show_options) {
  v1::ExplainVolumeResponse to;
  *to.mutable_volume() = ToProto(explanation.view, show_options);
  to.set_journal_key(ToUtf8(explanation.journal_key));
  to.set_in_journal(explanation.in_journal);
  to.set_identity(Printable(explanation.identity));
  to.set_directory(ToUtf8(explanation.directory));
  size_t left_out = 0;
  const auto room = [&left_out](int size) {
    const bool fits = size < kListLimit;
    if (!fits) ++left_out;
    return fits;
  };
  for (const KernelMount& mount : explanation.mounts) {
    if (room(to.mounts_size())) *to.add_mounts() = MountOf(mount, show_options);
  }
  for (const MountHolder& holder : explanation.holders) {
    if (room(to.holders_size())) *to.add_holders() = HolderOf(holder);
  }
  for (const RpcTrace& trace : explanation.rpcs) {
    if (room(to.rpcs_size())) *to.add_rpcs() = TraceOf(trace);
  }
  for (const std::string& remark : explanation.remarks) {
    if (room(to.remarks_size())) to.add_remarks(Printable(remark));
  }
  if (left_out > 0) to.add_remarks(fmt::format("{} mounts, holders or remarks are left out here", left_out));
  return to;
}

v1::ExamineResponse ToProto(const std::vector<Finding>& findings) {
  using Severity = Finding::Severity;
  v1::ExamineResponse to;
  size_t bytes = 0;
  size_t left_out = 0;
  for (const Severity severity : {Severity::kError, Severity::kWarning, Severity::kInfo}) {
    for (const Finding& finding : findings) {
      if (finding.severity != severity) continue;
      v1::Finding next = FindingOf(finding);
      bytes += next.ByteSizeLong();
      if (bytes > kFindingBytes) {
        ++left_out;
      } else {
        *to.add_findings() = std::move(next);
      }
    }
  }
  if (left_out > 0) {
    v1::Finding& more = *to.add_findings();
    more.set_severity(v1::WARNING);
    more.set_code("findings.more");
    more.set_text(fmt::format("{} more findings are left out here: fix these first", left_out));
  }
  return to;
}

v1::Volume DeclaredVolume(const std::string& plugin_id, const std::string& volume_id,
                          const std::vector<DeclaredView>& files, bool show_options) {
  v1::Volume to;
  to.set_plugin_id(ToUtf8(plugin_id));
  to.set_volume_id(ToUtf8(volume_id));
  // Nothing of it is mounted any more, and it is being detached.
  const bool leaves = std::ranges::all_of(files, &DeclaredView::withdrawn);
  to.set_state(leaves ? v1::UNSTAGING : v1::ABSENT);
  const v1::PublishVolumeRequest& request = files.front().request;
  *to.mutable_capability() = request.capability();
  if (request.capability().access_mode() == v1::ACCESS_MODE_UNKNOWN) {
    to.mutable_capability()->set_access_mode(static_cast<v1::AccessMode>(VolumeUse().access_mode));
  }
  if (request.mount_options().has_fs_type()) {
    to.mutable_capability()->set_fs_type(request.mount_options().fs_type());
  }
  const bool replaced = request.mount_options().has_mount_flags();
  const auto& flags =
      replaced ? request.mount_options().mount_flags().values() : request.capability().mount_flags();
  to.mutable_capability()->clear_mount_flags();
  FillFlags({flags.begin(), flags.end()}, show_options, to.mutable_capability()->mutable_mount_flags());
  AddDeclared(files, &to);
  return to;
}

void AddDeclared(const std::vector<DeclaredView>& files, v1::Volume* volume) {
  std::string names;
  for (const DeclaredView& file : files) {
    names += (names.empty() ? "" : ", ") + file.file;
    // A file with mistakes costs a volume that is there nothing: it stays as the file had it.
    const std::string error = volume->state() == v1::ABSENT ? ErrorOf(file) : file.last_error;
    if (!volume->last_error().empty() || error.empty()) continue;
    volume->set_last_error(Printable(error));
    if (file.next_retry_at && !volume->has_next_retry_at()) {
      *volume->mutable_next_retry_at() = ToProto(*file.next_retry_at);
    }
  }
  volume->set_declared_in(Printable(names));
  if (volume->state() == v1::ABSENT && !volume->still_in_use()) {
    volume->set_advice("Nothing: it is tried again by itself. After a change of its file: berthctl reload");
  }
}

std::string DeclaredName(const DeclaredView& file) {
  std::string name = file.file.substr(file.file.find_last_of('/') + 1);
  constexpr std::string_view kSuffix = ".toml";
  if (name.size() > kSuffix.size() && name.ends_with(kSuffix)) name.resize(name.size() - kSuffix.size());
  return name;
}

v1::DeclaredVolume ToProto(const DeclaredView& file) {
  v1::DeclaredVolume to;
  to.set_name(ToUtf8(DeclaredName(file)));
  to.set_file(ToUtf8(file.file));
  to.set_plugin(file.request.plugin_id());
  to.set_volume_id(file.request.volume_id());
  to.set_consumer(file.request.consumer());
  to.set_use_name(file.request.name());
  to.set_path(ToUtf8(file.path));
  const bool broken = !file.error_in_file.empty();
  to.set_state(file.published ? v1::DECLARED_PUBLISHED : broken ? v1::DECLARED_BROKEN : v1::DECLARED_PENDING);
  to.set_status(Printable(file.state));
  to.set_last_error(Printable(ErrorOf(file)));
  if (file.next_retry_at) *to.mutable_next_retry_at() = ToProto(*file.next_retry_at);
  return to;
}

bool IsWell(const DeclaredView& file) { return file.state == "published" && ErrorOf(file).empty(); }

std::string DescribeDeclared(const DeclaredView& file) {
  std::string text = fmt::format("{} declares it for consumer {}", Printable(file.file, 512),
                                 Printable(file.request.consumer(), 256));
  for (const std::string& part : {file.state, ErrorOf(file)}) {
    if (!part.empty()) text += ": " + Printable(part, 1024);
  }
  return text;
}

}  // namespace berth
