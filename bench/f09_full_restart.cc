// F9: berthd killed with 100 plugins and 10,000 publications, from the start of the next one until it is
// ready; against one parse of the mount table as it is then, and one load of its journal.

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "bench/bench_node.h"
#include "bench/durable_rows.h"
#include "bench/figures.h"
#include "bench/volume_calls.h"
#include "mounts/mount_table.h"

namespace berth {
namespace {

constexpr int kRestarted = 100;
constexpr int kPublications = 10'000;
constexpr size_t kPublishedAtOnce = 64;

class FullRestart : public Figure {
 public:
  explicit FullRestart(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F9",
            .what = fmt::format("berthd's start with {} plugins, {} publications", kRestarted, kPublications),
            .reference = "one parse of the mount table, one load of the journal",
            .unit = Unit::kSeconds,
            .goal = {.p50 = 2},
            .pairs = 10,
            .warmups = 1};
  }

  absl::Status Prepare() override {
    node_.emplace(options_.disk);
    for (int i = 0; i < kRestarted; ++i) {
      node_->AddBind(fmt::format("plugin-{}", i), options_.self, "[health]\ninterval = \"10s\"");
    }
    node_->Start();
    std::vector<BenchVolume> volumes;
    for (int i = 0; i < kPublications; ++i) {
      volumes.push_back(
          {.plugin_id = fmt::format("plugin-{}", i % kRestarted), .volume_id = fmt::format("v{}", i)});
    }
    BERTH_RETURN_IF_ERROR(PublishMany(node_->node(), volumes, kPublishedAtOnce));
    pids_ = Pids();
    node_->node().Kill();
    // No process has it open now.
    journal_ = node_->node().state_dir() + "/copy.db";
    for (const char* suffix : {"", "-wal"}) {
      const std::string from = node_->node().state_dir() + "/journal.db" + suffix;
      if (std::filesystem::exists(from)) std::filesystem::copy_file(from, journal_ + suffix);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override {
    const TimePoint start = Clock::now();
    node_->node().Begin();
    node_->node().AwaitReady();
    const double took = Seconds(Clock::now() - start);
    if (Pids() != pids_) return absl::InternalError("a plugin was restarted");
    const int known = node_->node().Volumes().volumes_size();
    if (known != kPublications) return absl::InternalError(fmt::format("{} volumes are known", known));
    node_->node().Kill();
    return took;
  }

  absl::StatusOr<double> Reference() override {
    const TimePoint start = Clock::now();
    BERTH_ASSIGN_OR_RETURN(const std::vector<Mount> mounts,
                           MountsBeneath(node_->node().state_dir(), 100'000));
    const TimePoint parsed = Clock::now();
    BERTH_ASSIGN_OR_RETURN(const size_t rows, LoadRows(journal_));
    const TimePoint loaded = Clock::now();
    if (mounts.size() < kPublications || rows < kPublications)
      return absl::InternalError(fmt::format("{} mounts, {} rows", mounts.size(), rows));
    parses_.push_back(Seconds(parsed - start));
    return Seconds(loaded - start);
  }

  absl::StatusOr<Remarks> Finish() override {
    return Remarks{.checks = {{.what = "plugins restarted", .found = "none", .holds = true}},
                   .notes = {fmt::format("of the reference, the parse: {}",
                                         QuantityText(Median(parses_), Unit::kSeconds))}};
  }

 private:
  std::map<std::string, int64_t> Pids() {
    std::map<std::string, int64_t> pids;
    v1::ListPluginsResponse plugins;
    const grpc::Status status = node_->node().stub().ListPlugins(Node::Context().get(), {}, &plugins);
    EXPECT_TRUE(status.ok()) << status.error_message();
    for (const v1::Plugin& plugin : plugins.plugins()) pids[plugin.id()] = plugin.pid();
    return pids;
  }

  const BenchOptions options_;
  std::optional<BenchNode> node_;
  std::map<std::string, int64_t> pids_;
  std::string journal_;
  std::vector<double> parses_;
};

}  // namespace

std::unique_ptr<Figure> MakeF09FullRestart(const BenchOptions& options) {
  return std::make_unique<FullRestart>(options);
}

}  // namespace berth
