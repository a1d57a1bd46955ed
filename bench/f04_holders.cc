// F4h: the census that comes before the last unstage of a volume with a disk of its own: the mounts of every
// mount namespace of the node, with 1,000 processes in 50 namespaces, on a thread of berthd; against a
// bare pass of the same system calls. In addition: with 10 processes, and how many helpers 64 releases at
// once take.

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mount_calls.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/figures.h"
#include "mounts/census.h"
#include "mounts/kernel_object.h"
#include "mounts/mount_helper.h"
#include "mounts/mount_tree.h"

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

// What any search has to ask: of each namespace its mounts, of each mount its file system.
absl::StatusOr<size_t> BarePass() {
  NamespaceInfo info;
  UniqueFd current(open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  for (int previous = 0; (previous = ioctl(current.get(), kPreviousNamespace, &info)) >= 0;)
    current.Reset(previous);
  size_t mounts = 0;
  std::array<uint64_t, 4096> ids{};
  StatmountAnswer<1> answer;
  while (current.valid()) {
    if (ioctl(current.get(), kNamespaceInfo, &info) != 0) return ErrnoStatus(errno, "NS_MNT_GET_INFO");
    const long count =
        Listmount({.mount_id = kListmountRoot, .namespace_id = info.id}, ids.data(), ids.size());
    for (long i = 0; i < count; ++i) {
      const MountRequest one{.mount_id = ids.at(static_cast<size_t>(i)),
                             .parameter = kStatmountSuperblock | kStatmountMount,
                             .namespace_id = info.id};
      if (Statmount(one, &answer) == 0) ++mounts;
    }
    current.Reset(ioctl(current.get(), kNextNamespace, &info));
  }
  return mounts;
}

class HolderSearch : public Figure {
 public:
  explicit HolderSearch(const BenchOptions& options) : tree_(options.disk + "/holder-tree") {}
  ~HolderSearch() override {
    for (const pid_t pid : bystanders_) {
      kill(-pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    umount2(staged_.c_str(), MNT_DETACH);
    rmdir(staged_.c_str());
    umount2(tree_.c_str(), MNT_DETACH);
  }
  HolderSearch(const HolderSearch&) = delete;
  HolderSearch& operator=(const HolderSearch&) = delete;

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F4h",
            .what = fmt::format("search for a volume's holders: {} processes, {} mount namespaces",
                                kNamespaces * kProcessesEach, kNamespaces),
            .reference = "one bare pass of listmount and statmount over the same namespaces",
            .unit = Unit::kSeconds,
            .goal = {.p50 = 2},
            .pairs = 50,
            .warmups = 3};
  }

  absl::Status Prepare() override {
    BERTH_RETURN_IF_ERROR(SetUpMountTree(tree_).status());
    BERTH_ASSIGN_OR_RETURN(const std::string helper, FindMountHelper(""));
    helper_.emplace(helper, scope_);
    census_.emplace(loop_.get_executor(), scope_, *helper_,
                    [](const std::set<dev_t>& /*devices*/) { return std::vector<uint64_t>(); });
    // In the shared tree, as a staging is: its unmount reaches the copies in other namespaces.
    if (mkdir(staged_.c_str(), 0755) != 0 && errno != EEXIST) return ErrnoStatus(errno, "mkdir " + staged_);
    if (mount("bench", staged_.c_str(), "tmpfs", 0, nullptr) != 0)
      return ErrnoStatus(errno, "mount " + staged_);
    BERTH_ASSIGN_OR_RETURN(const auto objects, ObjectsAt(staged_, tree_));
    BERTH_ASSIGN_OR_RETURN(const PathFacts facts, LookAt(staged_));
    for (const KernelObject& object : objects) {
      question_.objects.push_back({.device = object.device,
                                   .root = object.root,
                                   .fs_type = object.fs_type,
                                   .ours = {facts.mount_id},
                                   .directory = staged_,
                                   .staged = true});
      all_.objects.push_back({.device = object.device, .root = object.root, .fs_type = object.fs_type});
    }
    for (int i = 0; i < kFewProcesses; ++i) bystanders_.push_back(Bystander(false, 0));
    std::vector<double> few;
    for (int i = 0; i < 21; ++i) {
      BERTH_ASSIGN_OR_RETURN(const double took, Candidate());
      few.push_back(took);
    }
    std::ranges::sort(few);
    with_few_ = few[few.size() / 2];
    for (int i = 0; i < kNamespaces; ++i) bystanders_.push_back(Bystander(true, kProcessesEach - 1));
    // The mount counts as a hold in each namespace, and each hold is named by a process.
    const TimePoint start = Clock::now();
    const CensusAnswer found = Take(all_);
    with_holds_ = Seconds(Clock::now() - start);
    if (found.holds.size() <= kNamespaces) return absl::InternalError("not every namespace was looked at");
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override {
    const TimePoint start = Clock::now();
    const CensusAnswer answer = Take(question_);
    const double took = Seconds(Clock::now() - start);
    if (!answer.incomplete.empty()) return absl::InternalError(answer.incomplete);
    if (!answer.holds.empty()) return absl::InternalError("a copy of the volume's own mount was a hold");
    return took;
  }

  absl::StatusOr<double> Reference() override {
    const TimePoint start = Clock::now();
    BERTH_ASSIGN_OR_RETURN(const size_t mounts, BarePass());
    const double took = Seconds(Clock::now() - start);
    if (mounts == 0) return absl::InternalError("no mount was listed");
    return took;
  }

  absl::StatusOr<Remarks> Finish() override {
    const uint64_t before = census_->taken();
    std::vector<CensusAnswer> answers(kReleases);
    for (auto& answer : answers) scope_.Spawn("release", Ask(&*census_, question_, &answer));
    loop_.restart();
    loop_.run();
    const uint64_t searches = census_->taken() - before;
    Remarks remarks;
    remarks.checks.push_back({.what = fmt::format("{} releases at once share the search", kReleases),
                              .found = fmt::format("{} searches", searches),
                              .holds = searches <= 2});
    remarks.notes.push_back(
        fmt::format("with {} more processes than the bench's own, all in one namespace: {:.2f} ms",
                    kFewProcesses, with_few_ * 1e3));
    remarks.notes.push_back(
        fmt::format("with a hold to be named in each namespace: {:.2f} ms", with_holds_ * 1e3));
    return remarks;
  }

 private:
  CensusAnswer Take(const CensusQuestion& question) {
    CensusAnswer answer;
    scope_.Spawn("census", Ask(&*census_, question, &answer));
    loop_.restart();
    loop_.run();
    return answer;
  }
  static Awaitable<void> Ask(Census* census, CensusQuestion question, CensusAnswer* answer) {
    *answer = co_await census->Take(std::move(question), Clock::now() + kLimit);
  }

  const std::string tree_;
  const std::string staged_ = tree_ + "/staged";
  asio::io_context loop_;
  TaskScope scope_{loop_.get_executor(), "bench"};
  std::optional<MountHelper> helper_;
  std::optional<Census> census_;
  CensusQuestion question_;  // as before the last unstage: the mount and its copies are the volume's own
  CensusQuestion all_;       // every mount of the file system is a hold
  std::vector<pid_t> bystanders_;
  double with_few_ = 0;
  double with_holds_ = 0;
};

}  // namespace

std::unique_ptr<Figure> MakeF04Holders(const BenchOptions& options) {
  return std::make_unique<HolderSearch>(options);
}

}  // namespace berth
