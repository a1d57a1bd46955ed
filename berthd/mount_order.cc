#include "berthd/mount_order.h"

#include <fmt/format.h>
#include <systemd/sd-daemon.h>

#include <filesystem>
#include <utility>

#include "base/blocking.h"
#include "base/file.h"
#include "base/status.h"
#include "base/systemd_bus.h"

namespace berth {
namespace {

// The name of the drop-ins in the package (systemd/CMakeLists.txt).
constexpr std::string_view kPackagedTree = "/var/lib/berth/volumes";
constexpr const char* kRuntimeUnits = "/run/systemd/system";
constexpr size_t kDropInLimit = 4096;

}  // namespace

std::vector<DropIn> MountDropIns(const std::string& tree, const std::string& service) {
  const std::string name = EscapeUnitName(std::string_view(tree).substr(1));
  const std::string content =
      fmt::format("# Written by berthd: {} is stopped before these are unmounted.\n[Unit]\nBefore={}\n",
                  service, service);
  // A name that ends with a dash means every unit that begins with it (systemd.unit(5)).
  return {{.path = fmt::format("{}.mount.d/10-berth.conf", name), .content = content},
          {.path = fmt::format("{}-.mount.d/10-berth.conf", name), .content = content}};
}

absl::StatusOr<bool> WriteDropIns(const std::string& unit_dir, const std::vector<DropIn>& drop_ins) {
  bool changed = false;
  for (const DropIn& drop_in : drop_ins) {
    const std::string path = unit_dir + "/" + drop_in.path;
    const absl::StatusOr<std::string> there = ReadFile(path, kDropInLimit);
    if (there.ok() && *there == drop_in.content) continue;
    BERTH_RETURN_IF_ERROR(MakeDirectories(path.substr(0, path.rfind('/')), 0755));
    BERTH_RETURN_IF_ERROR(WriteFileSoon(path, drop_in.content, 0644));
    changed = true;
  }
  return changed;
}

Awaitable<absl::Status> OrderMountUnits(std::string state_dir, TimePoint deadline) {
  const std::string service = OwnServiceUnit();
  if (service.empty() || sd_booted() <= 0) co_return absl::OkStatus();
  auto write = [state_dir, service]() -> absl::StatusOr<bool> {
    std::error_code error;
    // The kernel, and so systemd, names mounts by their true paths.
    const std::string tree = std::filesystem::canonical(state_dir, error).string() + "/volumes";
    if (error) return ErrnoStatus(error.value(), fmt::format("resolve {}", state_dir));
    if (tree == kPackagedTree) return false;
    return WriteDropIns(kRuntimeUnits, MountDropIns(tree, service));
  };
  BERTH_CO_ASSIGN_OR_RETURN(const bool changed,
                            co_await RunBlocking("order mount units", std::move(write), deadline));
  // A unit that systemd has made already, for a mount of an earlier berthd, is read again only then.
  if (!changed) co_return absl::OkStatus();
  const SystemdBus bus;
  co_return co_await bus.ReloadUnits(deadline);
}

}  // namespace berth
