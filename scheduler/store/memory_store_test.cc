#include "scheduler/store/memory_store.h"

#include "scheduler/store/testing/store_suite.h"

namespace berth::scheduler {
namespace {

std::unique_ptr<Store> Make(const asio::any_io_executor& executor, const std::string& /*directory*/) {
  return std::make_unique<MemoryStore>(executor);
}
INSTANTIATE_TEST_SUITE_P(Memory, StoreSuite, testing::Values(&Make));

}  // namespace
}  // namespace berth::scheduler
