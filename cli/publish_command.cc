// volume publish.
#include <fmt/format.h>

#include <string>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/progress.h"
#include "cli/publish_options.h"
#include "cli/runtimes.h"
#include "cli/session.h"
#include "cli/volume_commands.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

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
    return node.Call(&NodeClient::Stub::PublishVolume, request,
                     fmt::format("publish {} for {}", PrintableName(named.volume),
                                 Use(request.consumer(), request.name())));
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
