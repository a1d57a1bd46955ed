// For tests only: a directory under /tmp that goes away with what was made in it through here.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace berth::cli {

class TempDir {
 public:
  TempDir() {
    std::string path = "/tmp/berthctl-test-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    path_ = path;
  }
  ~TempDir() {
    for (const std::string& file : files_) unlink(file.c_str());
    EXPECT_EQ(rmdir(path_.c_str()), 0) << path_;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  // The path of `name` in here, which is unlinked in the end if it is there.
  [[nodiscard]] std::string Path(const std::string& name) const {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }

  [[nodiscard]] std::string Write(const std::string& name, std::string_view content, mode_t mode) const {
    std::string path = Path(name);
    const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_GE(fd, 0) << path;
    EXPECT_EQ(write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
    EXPECT_EQ(fchmod(fd, mode), 0);
    close(fd);
    return path;
  }

 private:
  std::string path_;
  mutable std::vector<std::string> files_;
};

}  // namespace berth::cli
