// What is the matter with a volume. What a person does about it the node says: Volume.advice.
//
// Pure; any thread. The texts are not made printable yet: what shows them does that.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "berth/v1/node.pb.h"
#include "cli/table.h"

namespace berth::cli {

struct Condition {
  std::string word;  // for a column: "stuck 3m"
  std::string text;  // what it is: "umount /x does not return, since 3m (helper process 4711)"
  Tone tone = Tone::kBad;
};

// The worst first; empty: all is well.
[[nodiscard]] std::vector<Condition> ConditionsOf(const v1::Volume& volume,
                                                  std::chrono::system_clock::time_point now);

// "--plugin hostpath --volume v1", quoted for a shell.
[[nodiscard]] std::string NamedInShell(const v1::Volume& volume);

}  // namespace berth::cli
