// `berthd --check`: every mistake in berthd.toml, plugins.d and volumes.d, and in what they refer to, found
// by the code that a start and a reload use.
//
// Starts nothing, writes nothing and locks nothing, so it may be run while a berthd runs. Blocks on files and
// on look-ups of names: not on the loop.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "berthd/config.h"

namespace berth {

struct CheckedFiles {
  // One line each, with file, line and key where there are.
  std::vector<std::string> mistakes;
  // What may be right, and is worth knowing.
  std::vector<std::string> notes;
  size_t plugins = 0;  // files
  size_t volumes = 0;
};

[[nodiscard]] CheckedFiles CheckFiles(const BerthdOptions& options);

}  // namespace berth
