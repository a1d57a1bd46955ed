#include "plugins/hostpath/plugin.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/status.h"
#include "plugins/hostpath/loop_device.h"

namespace berth::hostpath {

absl::StatusOr<std::unique_ptr<Plugin>> Plugin::Open(const Options& options) {
  std::unique_ptr<Storage> storage;
  BERTH_ASSIGN_OR_RETURN(storage, Storage::Open(options.state_dir));
  std::unique_ptr<Store> store;
  BERTH_ASSIGN_OR_RETURN(store, Store::Open(storage->DatabasePath()));
  Machine machine;
  machine.loop_devices = LoopDevicesWork();
  machine.default_kind =
      options.default_kind.value_or(machine.loop_devices ? Kind::kImage : Kind::kDirectory);
  if (!machine.loop_devices) {
    SPDLOG_WARN(
        "loop devices cannot be used here: volumes can be directories only, without a capacity of their own");
  }
  std::unique_ptr<Plugin> plugin(new Plugin(options, machine, std::move(storage), std::move(store)));
  BERTH_RETURN_IF_ERROR(Recover(plugin->context_));
  return plugin;
}

Plugin::Plugin(const Options& options, const Machine& machine, std::unique_ptr<Storage> storage,
               std::unique_ptr<Store> store)
    : storage_(std::move(storage)),
      store_(std::move(store)),
      context_{.options = options,
               .machine = machine,
               .store = *store_,
               .storage = *storage_,
               .locks = locks_,
               .calls = calls_},
      identity_(context_),
      controller_(context_),
      node_(context_) {}

Plugin::~Plugin() {
  StopCleaning();
  if (cleaner_.joinable()) cleaner_.join();
}

void Plugin::StartCleaning() {
  cleaner_ = std::thread([this] { storage_->EmptyTrash(); });
}

void Plugin::StopCleaning() { storage_->StopEmptyingTrash(); }

}  // namespace berth::hostpath
