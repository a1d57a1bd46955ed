#include "controller/controller_outcome.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace berth {
namespace {

// A column is a code, in gRPC's order from OK to UNAUTHENTICATED.
//   D done   F failed   R retry   U uncertain   X refused
char OutcomeLetter(v1::Outcome outcome) {
  if (outcome == v1::OUTCOME_DONE) return 'D';
  if (outcome == v1::OUTCOME_FAILED) return 'F';
  if (outcome == v1::OUTCOME_RETRY) return 'R';
  if (outcome == v1::OUTCOME_UNCERTAIN) return 'U';
  return outcome == v1::OUTCOME_REFUSED ? 'X' : '?';
}

template <class Decide>
std::string RowOf(Decide decide) {
  std::string row;
  for (int code = 0; code <= 16; ++code) row += OutcomeLetter(decide(static_cast<absl::StatusCode>(code)));
  return row;
}

TEST(ControllerOutcomeTest, EveryKindOfCallAndEveryCode) {
  const std::pair<CsiRpc, std::string_view> rows[] = {
      // OK CANCELLED UNKNOWN | INVALID | DEADLINE | NOT_FOUND | ALREADY PERMISSION | EXHAUSTED |
      // PRECONDITION | ABORTED | OUT_OF_RANGE UNIMPLEMENTED | INTERNAL UNAVAILABLE DATA_LOSS |
      // UNAUTHENTICATED
      {CsiRpc::kCreateVolume, "DUUFUFFFFFUFFUUUF"},
      {CsiRpc::kControllerPublishVolume, "DUUFUFFFFFUFFUUUF"},
      {CsiRpc::kCreateSnapshot, "DUUFUFFFFFUFFUUUF"},
      {CsiRpc::kCreateVolumeGroupSnapshot, "DUUFUFFFFFUFFUUUF"},
      {CsiRpc::kControllerExpandVolume, "DUUFUFFFUFUFFUUUF"},
      {CsiRpc::kControllerModifyVolume, "DUUFUFFFUFUFFUUUF"},
      {CsiRpc::kControllerUnpublishVolume, "DUUFURFFUFUFFUUUF"},
      {CsiRpc::kDeleteVolume, "DUUFUFFFUFUFFUUUF"},
      {CsiRpc::kDeleteSnapshot, "DUUFUFFFUFUFFUUUF"},
      {CsiRpc::kDeleteVolumeGroupSnapshot, "DUUFUFFFUFUFFUUUF"},
      {CsiRpc::kValidateVolumeCapabilities, "DRRFRFFFRRRFFRRRF"},
      {CsiRpc::kListVolumes, "DRRFRFFFRRRFFRRRF"},
      {CsiRpc::kControllerGetVolume, "DRRFRFFFRRRFFRRRF"},
      {CsiRpc::kGetCapacity, "DRRFRFFFRRRFFRRRF"},
      {CsiRpc::kListSnapshots, "DRRFRFFFRRRFFRRRF"},
      {CsiRpc::kGetSnapshot, "DRRFRFFFRRRFFRRRF"},
      {CsiRpc::kGetVolumeGroupSnapshot, "DRRFRFFFRRRFFRRRF"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(RowOf([&row](absl::StatusCode code) { return OutcomeOf(row.first, code); }), row.second)
        << RpcName(row.first);
  }
}

TEST(ControllerOutcomeTest, WhatNeverLeftIsNeverUncertain) {
  EXPECT_EQ(RowOf(OutcomeUnsent).substr(1), "XXXRXXXXXXXXXRXX");
}

TEST(ControllerOutcomeTest, AChangeWithACodeThatNobodyKnowsIsUncertain) {
  EXPECT_EQ(OutcomeOf(CsiRpc::kCreateVolume, static_cast<absl::StatusCode>(77)), v1::OUTCOME_UNCERTAIN);
}

}  // namespace
}  // namespace berth
