#include "mounter/forced_options.h"

#include <fmt/format.h>

namespace berth {
namespace {

std::string Ago(WallTime when) {
  return fmt::format("{:.0f} s ago", std::chrono::duration<double>(WallClock::now() - when).count());
}

}  // namespace

void ForcedOptions::ForgetOld(const VolumeRecord& record) {
  // If no publication is left, its staging is still to be undone.
  if (record.publications.empty()) return;
  std::erase_if(for_keys, [&record](const PublicationKey& key) { return record.Find(key) == nullptr; });
  if (for_keys.empty()) *this = {};
}

std::string ForcedOptions::WhatWasDone() const {
  std::string done;
  if (aborted_at) done = fmt::format("its file system was aborted {}", Ago(*aborted_at));
  if (detached_at) {
    done += fmt::format("{}a mount of it was detached {}", done.empty() ? "" : "; ", Ago(*detached_at));
  }
  return done;
}

}  // namespace berth
