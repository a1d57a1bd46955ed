#include "mounter/mount_helper.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <string_view>

#include "base/process.h"
#include "base/status.h"

namespace berth {
namespace {

constexpr char kName[] = "berth-mount-helper";
constexpr size_t kOutputLimit = 4096;

// The number in "errno N", or 0.
int ErrnoIn(std::string_view output) {
  constexpr std::string_view kLead = "errno ";
  if (!output.starts_with(kLead)) return 0;
  int value = 0;
  std::from_chars(output.data() + kLead.size(), output.data() + output.size(), value);
  return value;
}

}  // namespace

absl::StatusOr<std::string> FindMountHelper(const std::string& configured) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::filesystem::path beside = self / kName;
  const std::filesystem::path installed = (self / "../libexec/berth" / kName).lexically_normal();
  for (const auto& candidate : {beside, installed, std::filesystem::path(configured)}) {
    if (!candidate.empty() && access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return absl::NotFoundError(fmt::format("{}: not at {}, {}{}{}", kName, beside.string(), installed.string(),
                                         configured.empty() ? "" : ", ", configured));
}

Awaitable<absl::StatusOr<std::string>> MountHelper::Run(std::string operation, std::string path,
                                                        TimePoint deadline) {
  const std::string what = fmt::format("{} {}", operation, path);
  ProcessSpec spec;
  spec.executable = executable_;
  spec.arguments = {operation, path};
  auto ran = co_await RunProcess(reaper_, std::move(spec), "", kOutputLimit, deadline);
  if (!ran.ok()) co_return Annotate(ran.status(), what);
  if (ran->exit.known && ran->exit.signal == 0 && ran->exit.code == 0) co_return std::move(ran->out);
  if (const int error = ErrnoIn(ran->out); error != 0) co_return ErrnoStatus(error, what);
  co_return absl::InternalError(fmt::format("{}: {} ended with {}: {}", what, executable_,
                                            ran->exit.Describe(), Printable(ran->err, 256)));
}

Awaitable<absl::Status> MountHelper::Unmount(std::string path, TimePoint deadline) {
  const auto output = co_await Run("umount", std::move(path), deadline);
  co_return output.status();
}

Awaitable<absl::StatusOr<bool>> MountHelper::IsReadonly(std::string path, TimePoint deadline) {
  const auto output = co_await Run("statvfs", path, deadline);
  if (!output.ok()) co_return output.status();
  if (output->starts_with("readonly 1")) co_return true;
  if (output->starts_with("readonly 0")) co_return false;
  co_return absl::InternalError(
      fmt::format("statvfs {}: {} answered {}", path, executable_, Printable(*output, 64)));
}

}  // namespace berth
