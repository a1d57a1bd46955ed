#include "declared/obligations.h"

#include <dirent.h>
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/directory_stream.h"
#include "base/file.h"
#include "base/safe_path.h"
#include "base/status.h"
#include "declared/obligation.pb.h"

namespace berth {
namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kFileLimit = size_t{1} << 20;
constexpr size_t kFilesLimit = 10'000;

declared::Obligation ToProto(const Obligation& obligation) {
  declared::Obligation proto;
  proto.set_version(kVersion);
  proto.set_file(obligation.file);
  proto.set_plugin(obligation.key.plugin);
  proto.set_plugin_id(obligation.plugin_id);
  proto.set_volume_id(obligation.key.volume_id);
  proto.set_consumer(obligation.key.consumer);
  proto.set_name(obligation.key.name);
  proto.set_mount_digest(obligation.mount_digest);
  proto.set_attach_sent(obligation.attach_sent);
  proto.set_node_id(obligation.node_id);
  proto.set_path(obligation.path);
  if (obligation.publish_context.has_value()) {
    proto.mutable_publish_context()->mutable_values()->insert(obligation.publish_context->begin(),
                                                              obligation.publish_context->end());
  }
  switch (obligation.secrets_reference.kind) {
    case SecretsReference::Kind::kNone:
      break;
    case SecretsReference::Kind::kFile:
      proto.set_secrets_file(obligation.secrets_reference.name);
      break;
    case SecretsReference::Kind::kCredential:
      proto.set_secrets_credential(obligation.secrets_reference.name);
      break;
  }
  proto.set_released_in_boot(obligation.released_in_boot);
  return proto;
}

Obligation FromProto(const declared::Obligation& proto) {
  Obligation obligation;
  obligation.file = proto.file();
  obligation.key = {proto.plugin(), proto.volume_id(), proto.consumer(), proto.name()};
  obligation.plugin_id = proto.plugin_id();
  obligation.mount_digest = proto.mount_digest();
  obligation.attach_sent = proto.attach_sent();
  obligation.node_id = proto.node_id();
  obligation.path = proto.path();
  if (proto.has_publish_context()) {
    obligation.publish_context.emplace(proto.publish_context().values().begin(),
                                       proto.publish_context().values().end());
  }
  if (!proto.secrets_file().empty()) {
    obligation.secrets_reference = {SecretsReference::Kind::kFile, proto.secrets_file()};
  } else if (!proto.secrets_credential().empty()) {
    obligation.secrets_reference = {SecretsReference::Kind::kCredential, proto.secrets_credential()};
  }
  obligation.released_in_boot = proto.released_in_boot();
  return obligation;
}

absl::StatusOr<Obligation> Read(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kFileLimit));
  declared::Obligation proto;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(text, &proto, options).ok() || proto.version() == 0 ||
      proto.plugin_id().empty() || proto.volume_id().empty() || proto.consumer().empty()) {
    return absl::DataLossError(fmt::format("{} is not a note of a declared volume", path));
  }
  if (proto.version() > kVersion) {
    return absl::FailedPreconditionError(fmt::format("{} was written by a newer berthd", path));
  }
  return FromProto(proto);
}

}  // namespace

std::string Obligations::PathOf(const DeclaredKey& key) const {
  return fmt::format("{}/{}.json", directory_,
                     HashComponent({key.plugin, key.volume_id, key.consumer, key.name}));
}

absl::StatusOr<std::vector<Obligation>> Obligations::Load(std::vector<std::string>* unreadable) const {
  std::vector<Obligation> all;
  const DirectoryStream directory(opendir(directory_.c_str()));
  if (directory == nullptr) {
    if (errno == ENOENT) return all;
    return ErrnoStatus(errno, fmt::format("read {}", directory_));
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(directory.get())) {
    // What a write that was cut short left behind has another ending.
    const std::string_view name = entry->d_name;
    if (name.ends_with(".json") && names.size() < kFilesLimit) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    absl::StatusOr<Obligation> read = Read(directory_ + "/" + name);
    if (read.ok()) {
      all.push_back(*std::move(read));
    } else {
      unreadable->emplace_back(MessageOf(read.status()));
    }
  }
  return all;
}

absl::Status Obligations::Write(const Obligation& obligation) const {
  BERTH_RETURN_IF_ERROR(MakeDirectories(directory_, 0700));
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(ToProto(obligation), &text, options);
  // Text that is no UTF-8 cannot be written so; it cannot come from a TOML file either.
  if (!printed.ok()) return absl::InvalidArgumentError("a note of a declared volume cannot be written");
  return WriteFileAtomic(PathOf(obligation.key), text, 0600);
}

absl::Status Obligations::Remove(const DeclaredKey& key) const { return RemoveFile(PathOf(key)); }

}  // namespace berth
