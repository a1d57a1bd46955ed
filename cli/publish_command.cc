// volume publish.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "cli/publish_options.h"
#include "cli/runtimes.h"
#include "cli/session.h"
#include "cli/volume_commands.h"
#include "cli/volume_view.h"
#include "spec/volume_spec.h"

namespace berth::cli {
namespace {

// A person reads a list of mistakes line by line; the error that follows counts them.
absl::Status BrokenFile(const Session& session, const std::string& file, const absl::Status& status) {
  constexpr std::string_view kHint = "Every key with its meaning: man berth-volume.toml";
  std::vector<std::string> lines;
  for (std::string_view rest = MessageOf(status); !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    lines.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (lines.size() == 1) return UsageError(lines.front(), kHint);
  if (session.output.json()) return UsageError(fmt::format("{}", fmt::join(lines, "; ")), kHint);
  for (const std::string& line : lines) session.output.Note(line);
  return UsageError(fmt::format("{}: {} mistakes; nothing was asked", Printable(file, 200), lines.size()),
                    kHint);
}

absl::StatusOr<v1::PublishVolumeRequest> ReadFileOption(const Session& session, const std::string& file) {
  if (file.empty()) return v1::PublishVolumeRequest();
  absl::StatusOr<v1::PublishVolumeRequest> request = v1::PublishVolumeRequest();
  if (file == "-") {
    BERTH_ASSIGN_OR_RETURN(const std::string text, ReadInput(file, "--file"));
    request = ParseVolumeSpec("standard input", text);
  } else {
    request = ReadVolumeSpec(file);
  }
  if (!request.ok()) return BrokenFile(session, file, request.status());
  return request;
}

absl::Status Publish(Session& session, const PublishOptions& options) {
  if (options.file == "-" && options.secrets_file == "-") {
    return UsageError("--file and --secrets-file cannot both be standard input");
  }
  BERTH_ASSIGN_OR_RETURN(v1::PublishVolumeRequest from_file, ReadFileOption(session, options.file));
  BERTH_ASSIGN_OR_RETURN(v1::PublishVolumeRequest request, WithOptions(std::move(from_file), options));
  BERTH_ASSIGN_OR_RETURN(const Secrets secrets, session.LoadSecrets(options.secrets_file));
  request.mutable_secrets()->insert(secrets.begin(), secrets.end());

  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  const VolumeOptions named{.plugin = request.plugin_id(), .volume = request.volume_id()};
  const absl::StatusOr<v1::PublishVolumeResponse> published = [&] {
    const Progress progress(session.output, "PublishVolume",
                            [&] { return node.RunningStep(named.plugin, named.volume); });
    return node.Call(
        &NodeClient::Stub::PublishVolume, request,
        fmt::format("publish {} for {}", Shown(named.volume), Use(request.consumer(), request.name())));
  }();
  const v1::RuntimeAbility& runtime = request.runtime();
  const bool only_named = !runtime.name().empty() && !runtime.mount() && !runtime.block();
  if (absl::IsInvalidArgument(published.status()) && only_named) {
    return WithHint(published.status(), RuntimeHint(runtime.name()));
  }
  if (!published.ok()) return Advised(node, named, published.status());
  if (session.output.json()) {
    session.output.Json(*published);
  } else {
    session.output.Value(published->target_path());
  }
  return absl::OkStatus();
}

}  // namespace

void AddPublish(CLI::App& volume, Command& chosen) {
  AddCommand<PublishOptions>(volume, "publish", "Make a volume usable here for one consumer", chosen,
                             DeclarePublish, Publish);
}

}  // namespace berth::cli
