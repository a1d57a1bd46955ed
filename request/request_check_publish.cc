// The checks of PublishVolume and UnpublishVolume.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/systemd_units.h"
#include "mounter/volume_record.h"
#include "mounter/volume_rpcs.h"
#include "request/request_check.h"
#include "request/request_parts.h"

namespace berth {
namespace {

using AccessMode = ::csi::v1::VolumeCapability::AccessMode;

bool OnOneNode(AccessMode::Mode mode) {
  return mode == AccessMode::SINGLE_NODE_WRITER || mode == AccessMode::SINGLE_NODE_READER_ONLY ||
         mode == AccessMode::SINGLE_NODE_SINGLE_WRITER || mode == AccessMode::SINGLE_NODE_MULTI_WRITER;
}

std::map<std::string, std::string> ToStdMap(const Mistakes::StringMap& map) {
  return {map.begin(), map.end()};
}

// The request's options override those of the volume: each as a whole if it is set.
void CheckOptions(const v1::MountOptions& options, VolumeUse* use, Mistakes& mistakes) {
  if (use->access_type == AccessType::kBlock) {
    if (options.has_fs_type()) mistakes.Add("mount_options.fs_type", "not with BLOCK");
    if (options.has_mount_flags()) mistakes.Add("mount_options.mount_flags", "not with BLOCK");
  }
  if (options.has_fs_type()) {
    mistakes.FsType("mount_options.fs_type", options.fs_type());
    use->fs_type = options.fs_type();
  }
  if (options.has_mount_flags()) {
    const auto& flags = options.mount_flags().values();
    mistakes.MountFlags("mount_options.mount_flags", flags);
    use->mount_flags = {flags.begin(), flags.end()};
  }
}

// -1 is how the kernel says "leave it".
void CheckId(const std::string& field, uint32_t id, Mistakes& mistakes) {
  if (id == std::numeric_limits<uint32_t>::max()) mistakes.Add(field, fmt::format("{} is no id", id));
}

void CheckPermissions(const RootPermissions& asked, Mistakes& mistakes) {
  if (asked.has_owner()) CheckId("permissions.owner", asked.owner(), mistakes);
  if (asked.has_group()) CheckId("permissions.group", asked.group(), mistakes);
  constexpr uint32_t kAllBits = 07777;
  if (asked.mode() > kAllBits) {
    mistakes.Add("permissions.mode", fmt::format("0{:o}, at most 07777 is taken", asked.mode()));
  }
  if (asked.recursive() && !asked.has_owner() && !asked.has_group()) {
    mistakes.Add("permissions.recursive", "only with owner or group");
  }
  const std::string& label = asked.selinux_label();
  mistakes.Length("permissions.selinux_label", label, RequestLimits::kLabel);
  const bool printable = std::ranges::all_of(label, [](char c) { return c > ' ' && c <= '~'; });
  if (!label.empty() && (!printable || std::ranges::count(label, ':') < 2)) {
    mistakes.Add("permissions.selinux_label", "must be user:role:type, or user:role:type:level");
  }
}

void CheckLife(const ConsumerLife& asked, Mistakes& mistakes) {
  if (asked.start_time() != 0 && asked.kind_case() != ConsumerLife::kPid) {
    mistakes.Add("life.start_time", "is a process's, and goes with pid");
  }
  switch (asked.kind_case()) {
    case ConsumerLife::kPid: {
      constexpr int64_t kMostPids = int64_t{1} << 22;  // PID_MAX_LIMIT
      if (asked.pid() < 1 || asked.pid() > kMostPids) {
        mistakes.Add("life.pid", fmt::format("{} is no process id", asked.pid()));
      }
      break;
    }
    case ConsumerLife::kCgroup:
      mistakes.AbsolutePath("life.cgroup", asked.cgroup());
      break;
    case ConsumerLife::kUnit:
      if (!IsUnitName(asked.unit())) {
        mistakes.Add("life.unit", "must be a unit's whole name, as \"web.service\"");
      }
      break;
    case ConsumerLife::KIND_NOT_SET:
      mistakes.Add("life", "names neither pid nor cgroup nor unit");
      break;
  }
}

// How the parts of a request fit together.
void CheckTogether(const v1::PublishVolumeRequest& request, const VolumeUse& use, Mistakes& mistakes) {
  if (ReadsOnly(use.access_mode) && !request.readonly()) {
    mistakes.Add("readonly", fmt::format("must be set: access mode {} allows reading only",
                                         AccessMode::Mode_Name(use.access_mode)));
  }
  if (request.has_permissions()) {
    if (use.access_type == AccessType::kBlock) mistakes.Add("permissions", "not with BLOCK");
    if (request.readonly()) mistakes.Add("permissions", "not with readonly");
    if (request.permissions().has_group() && !use.volume_mount_group.empty()) {
      mistakes.Add("permissions.group", "not with volume_mount_group, which sets the owner of the files");
    }
  }
  if (request.has_secrets_reference() && !request.secrets().empty()) {
    mistakes.Add("secrets_reference", "not with secrets");
  }
  const auto word = request.volume_context().find(std::string(kEphemeralKey));
  const bool has_word = word != request.volume_context().end();
  const bool says = has_word && word->second == "true";
  if (says && !request.ephemeral()) {
    mistakes.Add("volume_context", fmt::format("{} is the node's to set: ask for ephemeral", kEphemeralKey));
  }
  if (!request.ephemeral()) return;
  if (has_word && !says) {
    mistakes.Add("volume_context", fmt::format("{} contradicts ephemeral", kEphemeralKey));
  }
  if (use.access_type == AccessType::kBlock) mistakes.Add("ephemeral", "not with BLOCK");
  if (!OnOneNode(use.access_mode)) {
    mistakes.Add("ephemeral", fmt::format("not with access mode {}, which is for several nodes",
                                          AccessMode::Mode_Name(use.access_mode)));
  }
  if (request.has_publish_context()) {
    mistakes.Add("publish_context", "not with ephemeral: it is never attached");
  }
}

void CheckRuntime(const RuntimeAbility& asked, Mistakes& mistakes) {
  mistakes.Length("runtime.name", asked.name(), RequestLimits::kRuntimeName);
  mistakes.PlainText("runtime.name", asked.name());
  const bool only_named = !asked.name().empty() && !asked.mount() && !asked.block() && !asked.readonly() &&
                          asked.fs_types().empty();
  if (only_named) {
    mistakes.Add("runtime.name",
                 fmt::format("berthd.toml has no [[runtime]] \"{}\", and what it can use is not said",
                             Printable(asked.name(), 128)));
  } else if (!asked.mount() && !asked.block()) {
    mistakes.Add("runtime", "says that it can use neither mount nor block");
  }
  if (static_cast<size_t>(asked.fs_types_size()) > RequestLimits::kFsTypes) {
    mistakes.Add("runtime.fs_types",
                 fmt::format("{}, at most {} are taken", asked.fs_types_size(), RequestLimits::kFsTypes));
  } else {
    for (int i = 0; i < asked.fs_types_size(); ++i) {
      const std::string field = fmt::format("runtime.fs_types[{}]", i);
      if (asked.fs_types(i).empty()) mistakes.Add(field, "must not be empty");
      mistakes.FsType(field, asked.fs_types(i));
    }
  }
}

void CheckReference(const SecretsReference& asked, Mistakes& mistakes) {
  switch (asked.kind_case()) {
    case SecretsReference::kFile:
      mistakes.AbsolutePath("secrets_reference.file", asked.file());
      break;
    case SecretsReference::kCredential: {
      const std::string& name = asked.credential();
      mistakes.Required("secrets_reference.credential", name, RequestLimits::kFileName);
      mistakes.PlainText("secrets_reference.credential", name);
      if (name == "." || name == ".." || name.find('/') != std::string::npos) {
        mistakes.Add("secrets_reference.credential", "must be the name of a file, without a slash");
      }
      break;
    }
    case SecretsReference::KIND_NOT_SET:
      mistakes.Add("secrets_reference", "names neither file nor credential");
      break;
  }
}

// They are kept with each publication, so they have CSI's own limit for a map.
void CheckLabels(const google::protobuf::Map<std::string, std::string>& labels, Mistakes& mistakes) {
  size_t bytes = 0;
  for (const auto& [key, value] : labels) bytes += key.size() + value.size();
  if (bytes <= RequestLimits::kLabelBytes) return;
  mistakes.Add("consumer_labels",
               fmt::format("{} bytes long, at most {} are taken", bytes, RequestLimits::kLabelBytes));
}

// The volume and use that a claim is about, into `ask`.
template <class Request, class Ask>
void CheckClaimed(const Request& request, Ask& ask, Mistakes& mistakes) {
  const size_t qualified = request.namespace_().size() + 1 + request.consumer().size();
  mistakes.Required("namespace", request.namespace_(), RequestLimits::kConsumer);
  mistakes.PlainText("namespace", request.namespace_());
  if (request.namespace_().find('/') != std::string::npos) mistakes.Add("namespace", "must not hold a slash");
  mistakes.Required("volume", request.volume(), RequestLimits::kVolumeName);
  mistakes.PlainText("volume", request.volume());
  mistakes.Required("consumer", request.consumer(), RequestLimits::kConsumer);
  mistakes.PlainText("consumer", request.consumer());
  if (qualified > RequestLimits::kConsumer) {
    mistakes.Add("consumer", fmt::format("{} bytes long with its namespace, at most {} are taken", qualified,
                                         RequestLimits::kConsumer));
  }
  mistakes.Length("name", request.name(), RequestLimits::kConsumer);
  mistakes.PlainText("name", request.name());
  ask.set_namespace_(request.namespace_());
  ask.set_volume(request.volume());
  ask.set_consumer(request.consumer());
  ask.set_name(request.name());
}

}  // namespace

PublishRequest CheckPublish(const v1::PublishVolumeRequest& request, Mistakes& mistakes) {
  mistakes.Volume(request.plugin_id(), request.volume_id());
  mistakes.Required("consumer", request.consumer(), RequestLimits::kConsumer);
  mistakes.PlainText("consumer", request.consumer());
  mistakes.Length("name", request.name(), RequestLimits::kConsumer);
  mistakes.PlainText("name", request.name());
  mistakes.Length("label", request.label(), RequestLimits::kVolumeName);
  mistakes.PlainText("label", request.label());
  PublishRequest checked{
      .plugin_id = request.plugin_id(),
      .volume_id = request.volume_id(),
      .consumer = request.consumer(),
      .name = request.name(),
      .use = CheckCapability("capability", request.capability(), mistakes),
      .readonly = request.readonly(),
      .volume_context = ToStdMap(request.volume_context()),
      .publish_context = std::nullopt,
      .secrets = ToStdMap(request.secrets()),
      .remount = request.remount(),
      .ephemeral = request.ephemeral(),
      .consumer_labels = ToStdMap(request.consumer_labels()),
      .label = request.label(),
  };
  mistakes.Map("volume_context", request.volume_context());
  CheckLabels(request.consumer_labels(), mistakes);
  mistakes.Map("publish_context.values", request.publish_context().values());
  if (request.has_publish_context()) {
    checked.publish_context = ToStdMap(request.publish_context().values());
  }
  mistakes.Map("secrets", request.secrets());
  if (request.has_secrets_reference()) {
    CheckReference(request.secrets_reference(), mistakes);
    checked.secrets_reference = request.secrets_reference();
  }
  if (request.has_mount_options()) CheckOptions(request.mount_options(), &checked.use, mistakes);
  CheckPermissions(request.permissions(), mistakes);
  checked.permissions = request.permissions();
  if (request.has_life()) CheckLife(request.life(), mistakes);
  checked.life = request.life();
  if (request.has_runtime()) {
    CheckRuntime(request.runtime(), mistakes);
    checked.runtime = request.runtime();
  }
  CheckTogether(request, checked.use, mistakes);
  return checked;
}

absl::StatusOr<PublishRequest> CheckPublish(const v1::PublishVolumeRequest& request) {
  return CheckWhole(request, [](const auto& whole, Mistakes& found) { return CheckPublish(whole, found); });
}

UnpublishRequest CheckUnpublish(const v1::UnpublishVolumeRequest& request, Mistakes& mistakes) {
  mistakes.Volume(request.plugin_id(), request.volume_id());
  mistakes.Required("consumer", request.consumer(), RequestLimits::kConsumer);
  mistakes.Length("name", request.name(), RequestLimits::kConsumer);
  if (request.all_names() && !request.name().empty()) mistakes.Add("name", "not with all_names");
  return {
      .plugin_id = request.plugin_id(),
      .volume_id = request.volume_id(),
      .consumer = request.consumer(),
      .name = request.name(),
      .all_names = request.all_names(),
      .wait_for_consumer = request.wait(),
      .force = request.force(),
      .lazy = request.lazy(),
  };
}

absl::StatusOr<UnpublishRequest> CheckUnpublish(const v1::UnpublishVolumeRequest& request) {
  return CheckWhole(request, [](const auto& whole, Mistakes& found) { return CheckUnpublish(whole, found); });
}

absl::StatusOr<v1::ReleaseAsk> CheckRelease(const v1::ReleaseClaimRequest& request) {
  Mistakes mistakes;
  v1::ReleaseAsk ask;
  CheckClaimed(request, ask, mistakes);
  if (absl::Status status = mistakes.ToStatus(); !status.ok()) return status;
  return ask;
}

absl::StatusOr<v1::ClaimAsk> CheckClaim(const v1::ClaimVolumeRequest& request) {
  Mistakes mistakes;
  v1::ClaimAsk ask;
  CheckClaimed(request, ask, mistakes);
  if (request.has_life()) CheckLife(request.life(), mistakes);
  VolumeUse use = CheckCapability("capability", request.capability(), mistakes);
  if (request.has_mount_options()) CheckOptions(request.mount_options(), &use, mistakes);
  mistakes.Length("runtime", request.runtime(), RequestLimits::kRuntimeName);
  mistakes.PlainText("runtime", request.runtime());
  if (static_cast<size_t>(request.replaces_size()) > RequestLimits::kReplaced) {
    mistakes.Add("replaces",
                 fmt::format("{}, at most {} are taken", request.replaces_size(), RequestLimits::kReplaced));
  }
  for (int i = 0; i < request.replaces_size(); ++i) {
    const std::string field = fmt::format("replaces[{}]", i);
    mistakes.Required(field, request.replaces(i), RequestLimits::kConsumer);
    mistakes.PlainText(field, request.replaces(i));
  }
  if (absl::Status status = mistakes.ToStatus(); !status.ok()) return status;
  ask.set_readonly(request.readonly());
  if (request.has_capability()) *ask.mutable_capability() = request.capability();
  if (request.has_mount_options()) *ask.mutable_mount_options() = request.mount_options();
  ask.set_runtime(request.runtime());
  *ask.mutable_replaces() = request.replaces();
  if (request.has_life()) *ask.mutable_life() = request.life();
  return ask;
}

}  // namespace berth
