// F4h: the search for holders that comes before the last unstage of a volume: every mount namespace of the
// node once, with 1,000 processes in 50 namespaces; against the bare reads that it cannot do without. Beside
// it, with 10 processes, and how often 64 releases at once search.

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/directory_stream.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/figures.h"
#include "mounter/mount_namespaces.h"
#include "mounter/mount_tree.h"

namespace berth {
namespace {

constexpr int kFewProcesses = 10;
constexpr int kNamespaces = 50;
constexpr int kProcessesEach = 20;
constexpr int kReleases = 64;
constexpr Duration kLimit = std::chrono::seconds(60);

// A process that only waits; in a mount namespace of its own where `unshared`, with `children` more in it.
pid_t Bystander(bool unshared, int children) {
  std::array<int, 2> ready{};
  if (pipe2(ready.data(), O_CLOEXEC) != 0) return -1;
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    if (unshared && unshare(CLONE_NEWNS) != 0) _exit(1);
    for (int i = 0; i < children; ++i) {
      if (fork() == 0) break;
    }
    if (write(ready[1], "r", 1) != 1) _exit(1);
    while (true) pause();
  }
  if (pid > 0) setpgid(pid, pid);
  close(ready[1]);
  char byte = 0;
  for (int i = 0; i <= children; ++i) {
    if (read(ready[0], &byte, 1) != 1) break;
  }
  close(ready[0]);
  return pid;
}

// What any search has to read: of each process its namespace, of each namespace its table.
absl::StatusOr<size_t> BareReads() {
  const DirectoryStream processes(opendir("/proc"));
  if (processes == nullptr) return ErrnoStatus(errno, "open /proc");
  std::set<std::string> seen;
  size_t bytes = 0;
  std::array<char, 4096> link{};
  std::vector<char> buffer(size_t{64} * 1024);
  while (const dirent* const entry = readdir(processes.get())) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    const std::string process = fmt::format("/proc/{}", entry->d_name);
    const ssize_t length = readlink((process + "/ns/mnt").c_str(), link.data(), link.size());
    if (length <= 0 || !seen.emplace(link.data(), static_cast<size_t>(length)).second) continue;
    const UniqueFd fd(open((process + "/mountinfo").c_str(), O_RDONLY | O_CLOEXEC));
    ssize_t count = 0;
    while (fd.valid() && (count = read(fd.get(), buffer.data(), buffer.size())) > 0)
      bytes += static_cast<size_t>(count);
  }
  return bytes;
}

class HolderSearch : public Figure {
 public:
  explicit HolderSearch(const BenchOptions& options) : tree_(options.disk + "/holder-tree") {}
  ~HolderSearch() override {
    for (const pid_t pid : bystanders_) {
      kill(-pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    umount2(tree_.c_str(), MNT_DETACH);
  }
  HolderSearch(const HolderSearch&) = delete;
  HolderSearch& operator=(const HolderSearch&) = delete;

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F4h",
            .what = fmt::format("search for a volume's holders: {} processes, {} mount namespaces",
                                kNamespaces * kProcessesEach, kNamespaces),
            .reference = "reading each process's namespace and each namespace's table",
            .unit = Unit::kSeconds,
            .goal = {.p50 = 2},
            .pairs = 50,
            .warmups = 3};
  }

  absl::Status Prepare() override {
    BERTH_RETURN_IF_ERROR(SetUpMountTree(tree_).status());
    BERTH_ASSIGN_OR_RETURN(objects_, ObjectsAt(tree_, tree_));
    for (int i = 0; i < kFewProcesses; ++i) bystanders_.push_back(Bystander(false, 0));
    std::vector<double> few;
    for (int i = 0; i < 21; ++i) {
      BERTH_ASSIGN_OR_RETURN(const double took, Candidate());
      few.push_back(took);
    }
    std::ranges::sort(few);
    with_few_ = few[few.size() / 2];
    for (int i = 0; i < kNamespaces; ++i) bystanders_.push_back(Bystander(true, kProcessesEach - 1));
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override {
    const TimePoint start = Clock::now();
    BERTH_ASSIGN_OR_RETURN(const FoundMounts found, ScanMountNamespaces(objects_, tree_, start + kLimit));
    const double took = Seconds(Clock::now() - start);
    if (found.mounts.empty()) return absl::InternalError("the mount of this namespace was not found");
    return took;
  }

  absl::StatusOr<double> Reference() override {
    const TimePoint start = Clock::now();
    BERTH_ASSIGN_OR_RETURN(const size_t bytes, BareReads());
    const double took = Seconds(Clock::now() - start);
    if (bytes == 0) return absl::InternalError("no mount table was read");
    return took;
  }

  absl::StatusOr<Remarks> Finish() override {
    asio::io_context loop;
    TaskScope scope(loop.get_executor(), "bench");
    MountNamespaces namespaces(loop.get_executor(), scope, tree_);
    TaskScope releases(loop.get_executor(), "releases");
    const auto release = [](MountNamespaces* from, std::vector<KernelObject> objects) -> Awaitable<void> {
      [[maybe_unused]] const auto found = co_await from->Find(std::move(objects), Clock::now() + kLimit);
    };
    for (int i = 0; i < kReleases; ++i) releases.Spawn("release", release(&namespaces, objects_));
    loop.run();
    Remarks remarks;
    remarks.checks.push_back({.what = fmt::format("{} releases at once share the search", kReleases),
                              .found = fmt::format("{} searches", namespaces.scans()),
                              .holds = namespaces.scans() <= 2});
    remarks.notes.push_back(
        fmt::format("with {} more processes than the bench's own, all in one namespace: {:.2f} ms",
                    kFewProcesses, with_few_ * 1e3));
    return remarks;
  }

 private:
  const std::string tree_;
  std::vector<KernelObject> objects_;
  std::vector<pid_t> bystanders_;
  double with_few_ = 0;
};

}  // namespace

std::unique_ptr<Figure> MakeF04Holders(const BenchOptions& options) {
  return std::make_unique<HolderSearch>(options);
}

}  // namespace berth
