// For tests only: a directory of a test's own under /tmp, emptied level by level when the test ends: never
// recursively across what a test may have mounted or linked there.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace berth {

class TempDir {
 public:
  TempDir() {
    std::string pattern = "/tmp/berth-test.XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) abort();
    path_ = pattern;
  }
  ~TempDir() { Empty(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string Path(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream file(Path(name), std::ios::binary);
    file << content;
    EXPECT_TRUE(file.flush().good()) << Path(name);
  }
  void Remove(const std::string& name) const { EXPECT_EQ(unlink(Path(name).c_str()), 0) << name; }

 private:
  // Listed directories are real ones, since symlinks are recognised; depth is bounded.
  static void Empty(const std::string& directory, int depth = 0) {
    if (depth > 6) return;
    std::vector<std::string> directories;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.symlink_status().type() == std::filesystem::file_type::directory) {
        directories.push_back(entry.path().string());
      } else {
        unlink(entry.path().c_str());
      }
    }
    for (const std::string& each : directories) Empty(each, depth + 1);
    rmdir(directory.c_str());
  }

  std::string path_;
};

}  // namespace berth
