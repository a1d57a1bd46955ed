#include "mounter/secrets_reference.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/blocking.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "csi/secrets_text.h"

namespace berth {
namespace {

using SecretsMap = std::map<std::string, std::string>;

absl::Status Wrong(std::string_view what, std::string_view why) {
  return absl::FailedPreconditionError(fmt::format("{}: {}", what, why));
}

absl::StatusOr<SecretsMap> ReadFrom(const std::string& path, const std::string& what) {
  // Not through a symlink: whoever may make one could name any file of root's. O_NONBLOCK: it may be a pipe.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK));
  if (!fd.valid()) {
    return Wrong(what, errno == ELOOP ? "it is a symbolic link; name the file itself" : std::strerror(errno));
  }
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return Wrong(what, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return Wrong(what, "it is not a regular file");
  if (info.st_uid != 0) return Wrong(what, fmt::format("it belongs to user {}, not to root", info.st_uid));
  if ((info.st_mode & 077) != 0) {
    return Wrong(what, fmt::format("others than root have a right to it (mode {:#o}): chmod 600 it",
                                   info.st_mode & 07777));
  }
  std::string text;
  text.resize(kSecretsFileLimit + 1);
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = read(fd.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Wrong(what, std::strerror(errno));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  if (size > kSecretsFileLimit) return Wrong(what, fmt::format("longer than {} bytes", kSecretsFileLimit));
  text.resize(size);
  absl::StatusOr<SecretsMap> secrets = ParseSecretsText(text);
  explicit_bzero(text.data(), text.size());
  if (!secrets.ok()) {
    return Wrong(what, fmt::format("{}. {}", MessageOf(secrets.status()), kSecretsTextForms));
  }
  return secrets;
}

}  // namespace

Awaitable<absl::StatusOr<SecretsMap>> ReadSecretsReference(SecretsReference reference,
                                                           std::string credentials_dir, TimePoint deadline) {
  std::string path = reference.name;
  std::string what = fmt::format("secrets file {}", Printable(reference.name, 256));
  switch (reference.kind) {
    case SecretsReference::Kind::kNone:
      co_return SecretsMap{};
    case SecretsReference::Kind::kFile:
      break;
    case SecretsReference::Kind::kCredential: {
      what = fmt::format("credential {}", Printable(reference.name, 256));
      const char* given = std::getenv("CREDENTIALS_DIRECTORY");
      if (credentials_dir.empty() && given != nullptr) credentials_dir = given;
      if (credentials_dir.empty()) {
        co_return Wrong(what, "berthd was given none; name it in a LoadCredential= of berthd.service");
      }
      // The name comes from a journal, too: nothing but a file right there.
      if (reference.name.empty() || reference.name == "." || reference.name == ".." ||
          reference.name.find('/') != std::string::npos) {
        co_return Wrong(what, "that is no name of a credential");
      }
      path = fmt::format("{}/{}", credentials_dir, reference.name);
      break;
    }
  }
  // The thread gets its own copies: it may outlive this coroutine.
  auto read = [path, what] { return ReadFrom(path, what); };
  co_return co_await RunBlocking(what, std::move(read), deadline);
}

}  // namespace berth
