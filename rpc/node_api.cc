#include "rpc/node_api.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/process.h"
#include "base/status.h"
#include "rpc/convert.h"
#include "rpc/plugin_choice.h"
#include "rpc/shown.h"

namespace berth {
namespace {

constexpr size_t kProblemLimit = 100;

std::string NameOf(const VolumeView& volume) {
  return fmt::format("volume {} of plugin {}", Shown(volume.volume_id), Shown(volume.plugin_id));
}

std::string Because(const std::string& reason) { return reason.empty() ? "" : ": " + Printable(reason, 512); }

std::string DrainProblem(const v1::NodeDrain& drain) {
  const int left = drain.publications_left();
  const std::string far = left == 0 ? "nothing that counts is published here any more"
                                    : fmt::format("{} publication{} left", left, left == 1 ? " is" : "s are");
  return fmt::format("this node is being drained, {}{}", far, Because(drain.reason()));
}

// What an operator should look at, of the link to the scheduler. It may come and go; that it is away for long
// is what matters.
void AddProblems(const v1::LinkStatus& link, std::vector<std::string>* problems) {
  constexpr int64_t kAwayForLong = 60;  // seconds
  const int64_t seconds = ToProto(WallClock::now()).seconds() - link.since().seconds();
  const bool up = link.state() == v1::LinkStatus::SYNCING || link.state() == v1::LinkStatus::SYNCED;
  if (!up && seconds > kAwayForLong) {
    problems->push_back(fmt::format("the scheduler has not been reached for {} minute{}{}", seconds / 60,
                                    seconds < 120 ? "" : "s", Because(link.last_error())));
  }
  if (link.lease() == v1::LEASE_EXPIRED) {
    problems->push_back("the scheduler's lease has run out: nothing new of the scheduler's is begun");
  }
}

// What an operator should look at, of one volume.
void AddProblems(const VolumeView& volume, std::vector<std::string>* problems) {
  if (volume.stuck) {
    const auto helper =
        volume.stuck->pid > 0 ? fmt::format(" (process {})", volume.stuck->pid) : std::string();
    problems->push_back(fmt::format("{} is stuck in {}{}", NameOf(volume), Shown(volume.stuck->on), helper));
  } else if (volume.awaiting_secrets) {
    problems->push_back(
        fmt::format("{} waits for its secrets: publish it again with them, or unpublish it", NameOf(volume)));
  } else if (volume.uncertain) {
    problems->push_back(fmt::format("{}: whether the last step happened is not known{}", NameOf(volume),
                                    Because(volume.last_error)));
  } else if (!volume.last_error.empty()) {
    problems->push_back(fmt::format("{}{}", NameOf(volume), Because(volume.last_error)));
  }
  for (const PublicationView& use : volume.publications) {
    if (!use.dead.empty()) {
      problems->push_back(fmt::format("{}: its mount for consumer {} is dead{}", NameOf(volume),
                                      Shown(use.consumer), Because(use.dead)));
    }
    if (!use.hung.empty()) {
      problems->push_back(fmt::format("{}: the file system of its mount for consumer {} does not answer{}",
                                      NameOf(volume), Shown(use.consumer), Because(use.hung)));
    }
    if (!use.held.empty()) {
      problems->push_back(
          fmt::format("{}, for consumer {}{}", NameOf(volume), Shown(use.consumer), Because(use.held)));
    }
  }
}

}  // namespace

NodeApi::NodeApi(NodeInfo info, const NodeParts& parts, std::shared_ptr<LogFeed> log)
    : info_(std::move(info)),
      control_(parts.control),
      access_(parts.access),
      mounter_(parts.mounter),
      declared_(parts.declared),
      drainer_(parts.drainer),
      scheduler_(parts.scheduler),
      events_(parts.events),
      log_(std::move(log)) {}

NodeApi::Answer<v1::GetStatusResponse> NodeApi::GetStatus(v1::GetStatusRequest, CallInfo) {
  v1::GetStatusResponse answer;
  answer.set_node_id(info_.node_id);
  answer.set_version(info_.version);
  answer.set_boot_id(BootId());
  *answer.mutable_started_at() = ToProto(info_.started_at);
  answer.set_pid(getpid());
  answer.set_config_dir(info_.config_dir);
  answer.set_state_dir(info_.state_dir);
  answer.set_runtime_dir(info_.runtime_dir);
  for (const auto& [id, plugin] : control_.plugins()) {
    answer.set_plugins(answer.plugins() + 1);
    if (plugin.state == PluginState::kReady) answer.set_plugins_ready(answer.plugins_ready() + 1);
  }
  for (const VolumeView& volume : mounter_.List()) {
    answer.set_volumes(answer.volumes() + 1);
    answer.set_publications(answer.publications() + static_cast<int>(volume.publications.size()));
  }
  for (std::string& problem : Problems()) answer.add_problems(std::move(problem));
  answer.set_placement(Printable(control_.Placement(), 512));
  answer.set_last_event_sequence(events_.next_sequence() - 1);
  if (auto drain = drainer_.Describe()) *answer.mutable_drain() = *std::move(drain);
  if (auto link = scheduler_.Status()) *answer.mutable_scheduler() = *std::move(link);
  co_return answer;
}

std::vector<std::string> NodeApi::Problems() const {
  std::vector<std::string> problems;
  if (const auto drain = drainer_.Describe()) problems.push_back(DrainProblem(*drain));
  if (const auto link = scheduler_.Status()) AddProblems(*link, &problems);
  for (const std::string& problem : scheduler_.Problems()) problems.push_back(Printable(problem, 1024));
  for (const std::string& problem : mounter_.Problems()) problems.push_back(Printable(problem, 1024));
  for (const std::string& problem : control_.Problems()) problems.push_back(Printable(problem, 1024));
  for (const auto& [id, plugin] : control_.plugins()) {
    const bool idle = plugin.state == PluginState::kReady && !plugin.registered;
    if (!idle || plugin.held || plugin.draining) continue;
    problems.push_back(fmt::format("plugin {} answers but takes no work{}", id, Because(plugin.reason)));
  }
  for (const std::string& problem : declared_.Problems()) problems.push_back(Printable(problem, 1024));
  for (const DeclaredView& declared : declared_.List()) {
    for (const std::string& mistake : LinesOf(declared.error_in_file)) {
      problems.push_back(Printable(mistake, 1024));  // it names the file
    }
    if (!declared.error_in_file.empty() || declared.last_error.empty()) continue;
    problems.push_back(fmt::format("{}{}", Shown(declared.file), Because(declared.last_error)));
  }
  for (const VolumeView& volume : mounter_.List()) AddProblems(volume, &problems);
  if (problems.size() > kProblemLimit) {
    const size_t more = problems.size() - kProblemLimit;
    problems.resize(kProblemLimit);
    problems.push_back(fmt::format("and {} more", more));
  }
  return problems;
}

absl::StatusOr<std::string> NodeApi::NodePlugin(const std::string& name) const {
  auto resolved = ResolveNodePlugin(control_.plugins(), name);
  if (absl::IsNotFound(resolved.status()) && !mounter_.HeldThrough(name).empty()) return name;
  return resolved;
}

}  // namespace berth
