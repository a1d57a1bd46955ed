// volume mounts.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "cli/capability_options.h"
#include "cli/mount_formats.h"
#include "cli/mount_places.h"
#include "cli/session.h"
#include "cli/volume_commands.h"
#include "cli/volume_view.h"

namespace berth::cli {
namespace {

struct MountsOptions {
  std::string consumer;
  std::string format;
  std::vector<std::string> at;
};

constexpr const char* kMountsFooter =
    R"(Words are quoted for a shell where they have to be. Stop where berthctl fails, as these do:
  mounts=$(berthctl volume mounts job-7 --format podman) && eval "podman run $mounts IMAGE"
  berthctl volume mounts job-7 --at data=/var/lib/app --format systemd > /run/v.conf &&
    mv /run/v.conf /run/systemd/system/app.service.d/volumes.conf
What a format cannot express is an error, never something near it.)";

absl::Status Mounts(Session& session, const MountsOptions& options) {
  MountFormat format = session.output.json() ? MountFormat::kJson : MountFormat::kTable;
  if (!options.format.empty()) {
    BERTH_ASSIGN_OR_RETURN(format, ParseMountFormat(options.format));
  }
  v1::ListConsumerMountsRequest request;
  request.set_consumer(options.consumer);
  BERTH_ASSIGN_OR_RETURN(NodeClient node, session.Connect());
  BERTH_ASSIGN_OR_RETURN(const v1::ListConsumerMountsResponse answer,
                         node.Call(&NodeClient::Stub::ListConsumerMounts, request,
                                   fmt::format("list the mounts of {}", PrintableName(options.consumer))));
  BERTH_ASSIGN_OR_RETURN(const std::vector<PlacedMount> mounts, PlaceMounts(answer, options.at));
  return ShowMounts(session.output, format, mounts);
}

}  // namespace

void AddMounts(CLI::App& volume, Command& chosen) {
  AddCommand<MountsOptions>(
      volume, "mounts", "A consumer's volumes in the words of its runtime", chosen,
      [](CLI::App& command, MountsOptions& options) {
        command.add_option("consumer,--consumer", options.consumer, "The consumer")
            ->required()
            ->option_text("NAME");
        command.add_option("--format", options.format, fmt::format("One of {}", kMountFormats))
            ->option_text("FORMAT");
        AddRepeated(
            command, "--at", options.at, "NAME=/PATH",
            "Where the consumer is to see the use NAME, or the volume of that id; default: /volumes/NAME");
        command.footer(kMountsFooter);
      },
      Mounts);
}

}  // namespace berth::cli
