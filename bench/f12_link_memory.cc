// F12: what each connected node adds to its scheduler's private dirty memory, its whole state kept parsed,
// ready to be decided by; against a stream over which an empty message has been answered, and which is idle
// since.
//
// A fresh server for each measurement: memory that was used once is rarely given back.

#include <fmt/format.h>

#include "base/status.h"
#include "bench/figures.h"
#include "bench/link_server.h"
#include "bench/node_crowd.h"
#include "bench/process_usage.h"
#include "bench/simulated_node.h"

namespace berth {
namespace {

constexpr Duration kServerSettles = std::chrono::seconds(60);

class LinkMemory : public Figure {
 public:
  explicit LinkMemory(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F12",
            .what = fmt::format("memory added to a scheduler per connected node, {} nodes", options_.nodes),
            .reference = "an idle stream, a connection each",
            .unit = Unit::kBytes,
            .goal = {.p50 = 2},
            .pairs = 10,
            .warmups = 1};
  }

  absl::Status Prepare() override { return AllowDescriptors(options_.nodes); }

  absl::StatusOr<double> Candidate() override { return MemoryPerNode(LinkService::kScheduler); }
  absl::StatusOr<double> Reference() override { return MemoryPerNode(LinkService::kEmpty); }

  absl::StatusOr<Remarks> Finish() override {
    const auto state = SimulatedState(0).state();
    return Remarks{
        .notes = {fmt::format("a node's state is of {} plugins and {} volumes: {} on the wire, {} parsed",
                              kSimulatedPlugins, kSimulatedVolumes,
                              QuantityText(static_cast<double>(state.ByteSizeLong()), Unit::kBytes),
                              QuantityText(static_cast<double>(state.SpaceUsedLong()), Unit::kBytes))}};
  }

 private:
  [[nodiscard]] absl::StatusOr<double> MemoryPerNode(LinkService service) const {
    BERTH_ASSIGN_OR_RETURN(const LinkServer server,
                           LinkServer::Start(options_.self, service, options_.nodes));
    BERTH_RETURN_IF_ERROR(LetSettle(server.pid(), kServerSettles));
    BERTH_ASSIGN_OR_RETURN(const PrivateMemory before, ReadPrivateMemory(server.pid()));
    BERTH_ASSIGN_OR_RETURN(const auto crowd, NodeCrowd::Connect(server.address(), service, options_.nodes));
    BERTH_RETURN_IF_ERROR(LetSettle(server.pid(), kServerSettles));
    BERTH_ASSIGN_OR_RETURN(const PrivateMemory after, ReadPrivateMemory(server.pid()));
    return (after.dirty - before.dirty) / options_.nodes;
  }

  const BenchOptions options_;
};

}  // namespace

std::unique_ptr<Figure> MakeF12LinkMemory(const BenchOptions& options) {
  return std::make_unique<LinkMemory>(options);
}

}  // namespace berth
