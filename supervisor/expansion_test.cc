#include "supervisor/expansion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth {
namespace {

using ::testing::HasSubstr;

const Variables kVariables = {
    {"CSI_SOCKET", "/run/x/csi.sock"}, {"EMPTY", ""}, {"TRICKY", "${CSI_SOCKET}$$"}};

TEST(ExpansionTest, ReplacesNamesWhereverTheyStand) {
  EXPECT_EQ(*Expand("--socket=${CSI_SOCKET}", kVariables), "--socket=/run/x/csi.sock");
  EXPECT_EQ(*Expand("${CSI_SOCKET}${EMPTY}${CSI_SOCKET}", kVariables), "/run/x/csi.sock/run/x/csi.sock");
  EXPECT_EQ(*Expand("", kVariables), "");
  EXPECT_EQ(*Expand("plain", kVariables), "plain");
}

TEST(ExpansionTest, TwoDollarsAreOne) {
  EXPECT_EQ(*Expand("$${CSI_SOCKET}", kVariables), "${CSI_SOCKET}");
  EXPECT_EQ(*Expand("$$$$", kVariables), "$$");
}

TEST(ExpansionTest, AnyOtherDollarStandsForItself) {
  EXPECT_EQ(*Expand("$HOME costs 5$", kVariables), "$HOME costs 5$");
  EXPECT_EQ(*Expand("a}b{c", kVariables), "a}b{c");
}

TEST(ExpansionTest, ValuesAreNotExpandedAgain) {
  EXPECT_EQ(*Expand("${TRICKY}", kVariables), "${CSI_SOCKET}$$");
}

TEST(ExpansionTest, UnknownNameListsTheKnownOnes) {
  const absl::Status status = Expand("${CSI_SOKET}", kVariables).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unknown variable ${CSI_SOKET}"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("${CSI_SOCKET}, ${EMPTY}, ${TRICKY}"));
  EXPECT_FALSE(Expand("${}", kVariables).ok());
}

TEST(ExpansionTest, KubernetesWayIsAnErrorWithOurs) {
  for (const char* const text : {"--endpoint=$(CSI_SOCKET)", "$(KUBE_NODE_NAME)"}) {
    const absl::Status status = Expand(text, kVariables).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Berth writes ${"));
  }
  EXPECT_EQ(*Expand("$(date) $() $(A", kVariables), "$(date) $() $(A") << "a shell's";
  EXPECT_EQ(*Expand("$$(CSI_SOCKET)", kVariables), "$(CSI_SOCKET)");
}

TEST(ExpansionTest, MissingBraceIsAnError) {
  const absl::Status status = Expand("a ${CSI_SOCKET", kVariables).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("closing brace"));
}

}  // namespace
}  // namespace berth
