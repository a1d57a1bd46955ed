// A directory that is being read, closed by itself. Any thread, one at a time.
#pragma once

#include <dirent.h>

#include <memory>

namespace berth {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};
using DirectoryStream = std::unique_ptr<DIR, CloseDirectory>;

}  // namespace berth
