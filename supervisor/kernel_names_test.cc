#include "supervisor/kernel_names.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <set>

namespace berth {
namespace {

TEST(KernelNamesTest, CapabilitiesAreFoundInBothSpellings) {
  EXPECT_EQ(CapabilityNumber("CAP_SYS_ADMIN"), CAP_SYS_ADMIN);
  EXPECT_EQ(CapabilityNumber("cap_sys_admin"), CAP_SYS_ADMIN);
  EXPECT_EQ(CapabilityNumber("CAP_CHOWN"), 0);
  for (const char* name : {"", "CAP_", "SYS_ADMIN", "sys_admin", "Cap_Sys_Admin", "cap_SYS_ADMIN",
                           "CAP_sys_admin", "CAP_SYS_ADMIN ", "CAP_NONE"}) {
    EXPECT_EQ(CapabilityNumber(name), std::nullopt) << name;
  }
}

TEST(KernelNamesTest, EveryCapabilityHasANameThatLeadsBack) {
  for (int number = 0; number <= CAP_LAST_CAP; ++number) {
    EXPECT_EQ(CapabilityNumber(CapabilityName(number)), number) << CapabilityName(number);
  }
  EXPECT_EQ(CapabilityName(63), "capability 63");
  EXPECT_EQ(CapabilityName(-1), "capability -1");
}

TEST(KernelNamesTest, LastCapabilityIsTheKernels) {
  EXPECT_GE(prctl(PR_CAPBSET_READ, LastCapability(), 0, 0, 0), 0);
  EXPECT_LT(prctl(PR_CAPBSET_READ, LastCapability() + 1, 0, 0, 0), 0);
}

TEST(KernelNamesTest, EveryResourceOfTheKernelHasAName) {
  std::set<int> resources;
  for (const ResourceName& name : ResourceNames()) resources.insert(name.resource);
  EXPECT_EQ(resources.size(), static_cast<size_t>(RLIM_NLIMITS));
  EXPECT_EQ(resources.size(), ResourceNames().size());
}

}  // namespace
}  // namespace berth
