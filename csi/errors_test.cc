#include "csi/errors.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace berth {
namespace {

// The whole decision, to be read by people. A column is a code, a row is an RPC.
//   D done   F final   R retry   U uncertain   A absent
constexpr std::string_view kCodes[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// clang-format off
constexpr std::pair<CsiRpc, std::string_view> kOutcomes[] = {
    // OK, CANCELLED, UNKNOWN ─────────────────┐
    // INVALID_ARGUMENT ───────────────────────┼──┐
    // DEADLINE_EXCEEDED ──────────────────────┼──┼─┐
    // NOT_FOUND ──────────────────────────────┼──┼─┼─┐
    // ALREADY_EXISTS, PERMISSION_DENIED ──────┼──┼─┼─┼─┐
    // RESOURCE_EXHAUSTED ─────────────────────┼──┼─┼─┼─┼──┐
    // FAILED_PRECONDITION ────────────────────┼──┼─┼─┼─┼──┼─┐
    // ABORTED ────────────────────────────────┼──┼─┼─┼─┼──┼─┼─┐
    // OUT_OF_RANGE, UNIMPLEMENTED ────────────┼──┼─┼─┼─┼──┼─┼─┼─┐
    // INTERNAL, UNAVAILABLE, DATA_LOSS ───────┼──┼─┼─┼─┼──┼─┼─┼─┼──┐
    // UNAUTHENTICATED ────────────────────────┼──┼─┼─┼─┼──┼─┼─┼─┼──┼───┐
    {CsiRpc::kGetPluginInfo,                  "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kGetPluginCapabilities,          "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kProbe,                          "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kControllerGetCapabilities,      "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kValidateVolumeCapabilities,     "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kListVolumes,                    "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kGetCapacity,                    "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kListSnapshots,                  "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kGetSnapshot,                    "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kControllerGetVolume,            "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kGroupControllerGetCapabilities, "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kGetVolumeGroupSnapshot,         "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kNodeGetCapabilities,            "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kNodeGetInfo,                    "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kNodeGetVolumeStats,             "DRR F R F FF R R R FF RRR F"},
    {CsiRpc::kCreateVolume,                   "DUU F U F FF F F R FF UUU F"},
    {CsiRpc::kControllerPublishVolume,        "DUU F U F FF F F R FF UUU F"},
    {CsiRpc::kCreateSnapshot,                 "DUU F U F FF F F R FF UUU F"},
    {CsiRpc::kCreateVolumeGroupSnapshot,      "DUU F U F FF F F R FF UUU F"},
    {CsiRpc::kControllerExpandVolume,         "DUU F U F FF U F R FF UUU F"},
    {CsiRpc::kControllerModifyVolume,         "DUU F U F FF U F R FF UUU F"},
    {CsiRpc::kNodeStageVolume,                "DUU F U F FF U F R FF UUU F"},
    {CsiRpc::kNodePublishVolume,              "DUU F U F FF U F R FF UUU F"},
    {CsiRpc::kNodeExpandVolume,               "DUU F U F FF U F R FF UUU F"},
    {CsiRpc::kDeleteVolume,                   "DUU F U A FF U F R FF UUU F"},
    {CsiRpc::kControllerUnpublishVolume,      "DUU F U R FF U F R FF UUU F"},
    {CsiRpc::kDeleteSnapshot,                 "DUU F U A FF U F R FF UUU F"},
    {CsiRpc::kDeleteVolumeGroupSnapshot,      "DUU F U A FF U F R FF UUU F"},
    {CsiRpc::kNodeUnstageVolume,              "DUU F U A FF U F R FF UUU F"},
    {CsiRpc::kNodeUnpublishVolume,            "DUU F U A FF U F R FF UUU F"},
};
// clang-format on

char Letter(CallOutcome outcome) {
  switch (outcome) {
    case CallOutcome::kDone:
      return 'D';
    case CallOutcome::kFinal:
      return 'F';
    case CallOutcome::kRetry:
      return 'R';
    case CallOutcome::kUncertain:
      return 'U';
    case CallOutcome::kAbsent:
      return 'A';
  }
  return '?';
}

TEST(ClassifyTest, DecidesEveryRpcAndCodeAsTheTableSays) {
  for (size_t code = 0; code < std::size(kCodes); ++code) {
    ASSERT_EQ(CodeName(static_cast<absl::StatusCode>(code)), kCodes[code]) << "the columns are in order";
  }
  for (const auto& [rpc, row] : kOutcomes) {
    std::string expected;
    for (const char c : row) {
      if (c != ' ') expected += c;
    }
    ASSERT_EQ(expected.size(), std::size(kCodes)) << RpcName(rpc);
    for (size_t code = 0; code < std::size(kCodes); ++code) {
      EXPECT_EQ(Letter(Classify(rpc, static_cast<absl::StatusCode>(code))), expected[code])
          << RpcName(rpc) << " " << kCodes[code];
    }
  }
}

TEST(ClassifyTest, TheTableHasEveryRpcOnce) {
  std::vector<std::string_view> names;
  for (const auto& [rpc, row] : kOutcomes) names.push_back(RpcName(rpc));
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  // The enum's values are consecutive and this is the last one.
  EXPECT_EQ(names.size(), static_cast<size_t>(CsiRpc::kNodeGetInfo) + 1);
}

TEST(ClassifyTest, OnlyWhatChangesNothingIsNeverUncertain) {
  for (const auto& [rpc, row] : kOutcomes) {
    EXPECT_EQ(ChangesSomething(rpc), row.find('U') != std::string_view::npos) << RpcName(rpc);
  }
}

TEST(ClassifyTest, ACodeThatNobodyKnowsIsLikeUnknown) {
  constexpr auto kStrange = static_cast<absl::StatusCode>(77);
  for (const auto& [rpc, row] : kOutcomes) {
    EXPECT_EQ(Classify(rpc, kStrange), Classify(rpc, absl::StatusCode::kUnknown)) << RpcName(rpc);
  }
}

}  // namespace
}  // namespace berth
