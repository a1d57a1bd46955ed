// F11: what a heartbeat of a node costs its scheduler, with 5,000 of them connected; against an empty message
// that is answered with an empty one, over as many streams of as many connections at the same pace.
//
// The reference is a generic service: there is nothing to parse, and nothing is known of who speaks.

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "bench/figures.h"
#include "bench/link_server.h"
#include "bench/node_crowd.h"
#include "bench/process_usage.h"

namespace berth {
namespace {

// As 5,000 nodes beat that do so every five seconds; it stays when there are fewer.
constexpr Duration kBetweenHeartbeats = std::chrono::milliseconds(1);
constexpr Duration kCrowdSettles = std::chrono::seconds(60);

// A server, and the nodes that are connected to it.
struct ServedCrowd {
  LinkServer server;
  std::unique_ptr<NodeCrowd> crowd;
};

absl::StatusOr<ServedCrowd> ServeCrowd(const BenchOptions& options, LinkService service) {
  BERTH_ASSIGN_OR_RETURN(LinkServer server, LinkServer::Start(options.self, service, options.nodes));
  BERTH_ASSIGN_OR_RETURN(auto crowd, NodeCrowd::Connect(server.address(), service, options.nodes));
  BERTH_RETURN_IF_ERROR(LetSettle(server.pid(), kCrowdSettles));
  return ServedCrowd{.server = std::move(server), .crowd = std::move(crowd)};
}

class HeartbeatCpu : public Figure {
 public:
  explicit HeartbeatCpu(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {
        .id = "F11",
        .what = fmt::format("a scheduler's CPU for a node's heartbeat and lease, {} nodes", options_.nodes),
        .reference = "an empty message answered with an empty one, as many streams, the same pace",
        .unit = Unit::kSeconds,
        .goal = {.p50 = 1.5},
        .pairs = 10,
        .warmups = 1};
  }

  absl::Status Prepare() override {
    BERTH_RETURN_IF_ERROR(AllowDescriptors(2 * options_.nodes));
    BERTH_ASSIGN_OR_RETURN(ServedCrowd scheduler, ServeCrowd(options_, LinkService::kScheduler));
    BERTH_ASSIGN_OR_RETURN(ServedCrowd floor, ServeCrowd(options_, LinkService::kEmpty));
    scheduler_.emplace(std::move(scheduler));
    floor_.emplace(std::move(floor));
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override { return CpuPerBeat(*scheduler_); }
  absl::StatusOr<double> Reference() override { return CpuPerBeat(*floor_); }

  absl::StatusOr<Remarks> Finish() override {
    const double milliseconds = Seconds(kBetweenHeartbeats) * 1e3;
    return Remarks{.notes = {fmt::format("a heartbeat every {} ms; a connection of plain TCP for each of {} "
                                         "nodes; every heartbeat was answered, and granted a lease",
                                         milliseconds, options_.nodes)}};
  }

 private:
  [[nodiscard]] absl::StatusOr<double> CpuPerBeat(ServedCrowd& served) const {
    BERTH_ASSIGN_OR_RETURN(const double before, CpuTime(served.server.pid()));
    BERTH_RETURN_IF_ERROR(served.crowd->BeatAll(kBetweenHeartbeats));
    BERTH_ASSIGN_OR_RETURN(const double after, CpuTime(served.server.pid()));
    return (after - before) / options_.nodes;
  }

  const BenchOptions options_;
  std::optional<ServedCrowd> scheduler_;
  std::optional<ServedCrowd> floor_;
};

}  // namespace

std::unique_ptr<Figure> MakeF11HeartbeatCpu(const BenchOptions& options) {
  return std::make_unique<HeartbeatCpu>(options);
}

}  // namespace berth
