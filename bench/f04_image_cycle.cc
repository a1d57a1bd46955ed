// F4: a volume's whole way on a node, stage, publish, unpublish, unstage, through berthd; against the same
// four RPCs straight to the same plugin. berth-hostpath, an ext4 image on a loop device.

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "bench/bench_node.h"
#include "bench/figures.h"
#include "bench/volume_calls.h"

namespace berth {
namespace {

class ImageCycle : public Figure {
 public:
  explicit ImageCycle(const BenchOptions& options) : options_(options) {}

  [[nodiscard]] FigureInfo Info() const override {
    return {.id = "F4",
            .what = "stage, publish, unpublish, unstage of an image volume",
            .reference = "the same four RPCs straight to the plugin",
            .unit = Unit::kSeconds,
            .goal = {.p50 = 1.10, .p99 = 1.25},
            .pairs = 100,
            .warmups = 5};
  }

  absl::Status Prepare() override {
    node_.emplace(options_.disk);
    node_->AddHostpath("hostpath");
    node_->Start();
    plugin_.emplace(node_->PluginSocket("hostpath"));
    v1::CreateVolumeRequest request;
    request.set_name("v");
    request.set_required_bytes(int64_t{64} * 1024 * 1024);
    request.add_capabilities()->set_fs_type("ext4");
    (*request.mutable_parameters())["kind"] = "image";
    volume_ = node_->node().CreateVolume(request);
    if (volume_.empty()) return absl::InternalError("there is no volume");
    const std::string reference = node_->node().state_dir() + "/reference";
    staging_ = reference + "/staging";
    target_ = reference + "/target";
    for (const std::string& directory : {reference, staging_}) {
      if (mkdir(directory.c_str(), 0750) != 0) return ErrnoStatus(errno, fmt::format("mkdir {}", directory));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> Candidate() override {
    const BenchVolume volume{.plugin_id = "hostpath", .volume_id = volume_};
    const TimePoint start = Clock::now();
    BERTH_RETURN_IF_ERROR(PublishThrough(node_->node(), volume));
    BERTH_RETURN_IF_ERROR(UnpublishThrough(node_->node(), volume));
    return Seconds(Clock::now() - start);
  }

  absl::StatusOr<double> Reference() override {
    const TimePoint start = Clock::now();
    BERTH_RETURN_IF_ERROR(plugin_->Stage(volume_, staging_));
    BERTH_RETURN_IF_ERROR(plugin_->Publish(volume_, staging_, target_));
    BERTH_RETURN_IF_ERROR(plugin_->Unpublish(volume_, target_));
    BERTH_RETURN_IF_ERROR(plugin_->Unstage(volume_, staging_));
    return Seconds(Clock::now() - start);
  }

 private:
  const BenchOptions options_;
  std::optional<BenchNode> node_;
  std::optional<PluginCalls> plugin_;
  std::string volume_;
  std::string staging_;
  std::string target_;
};

}  // namespace

std::unique_ptr<Figure> MakeF04ImageCycle(const BenchOptions& options) {
  return std::make_unique<ImageCycle>(options);
}

}  // namespace berth
