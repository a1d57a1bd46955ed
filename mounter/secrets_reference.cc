#include "mounter/secrets_reference.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/status.h"
#include "csi/secrets_text.h"

namespace berth {
namespace {

using SecretsMap = std::map<std::string, std::string>;

absl::Status Wrong(std::string_view what, std::string_view why) {
  return absl::FailedPreconditionError(fmt::format("{}: {}", what, why));
}

absl::Status CheckWhose(const FileContent& file, const std::string& what) {
  if (!S_ISREG(file.mode)) return Wrong(what, "it is not a regular file");
  if (file.owner != 0) return Wrong(what, fmt::format("it belongs to user {}, not to root", file.owner));
  if ((file.mode & 077) != 0) {
    return Wrong(what, fmt::format("others than root have a right to it (mode {:#o}): chmod 600 it",
                                   file.mode & 07777));
  }
  return absl::OkStatus();
}

absl::StatusOr<SecretsMap> SecretsIn(const FileContent& file, const std::string& what) {
  BERTH_RETURN_IF_ERROR(CheckWhose(file, what));
  if (file.text.size() > kSecretsFileLimit) {
    return Wrong(what, fmt::format("longer than {} bytes", kSecretsFileLimit));
  }
  absl::StatusOr<SecretsMap> secrets = ParseSecretsText(file.text);
  if (secrets.ok()) return secrets;
  return Wrong(what, fmt::format("{}. {}", MessageOf(secrets.status()), kSecretsTextForms));
}

absl::Status CannotRead(const absl::Status& why, const std::string& what) {
  const std::optional<int> error = ErrnoOf(why);
  if (!error) return Annotate(why, what);
  return Wrong(what, *error == ELOOP ? "it is a symbolic link; name the file itself" : std::strerror(*error));
}

}  // namespace

Awaitable<absl::StatusOr<SecretsMap>> ReadSecretsReference(SecretsReference reference,
                                                           std::string credentials_dir, MountHelper& helper,
                                                           TimePoint deadline) {
  std::string path = reference.file();
  std::string what = fmt::format("secrets file {}", Printable(path, 256));
  switch (reference.kind_case()) {
    case SecretsReference::KIND_NOT_SET:
      co_return SecretsMap{};
    case SecretsReference::kFile:
      break;
    case SecretsReference::kCredential: {
      const std::string& name = reference.credential();
      what = fmt::format("credential {}", Printable(name, 256));
      const char* given = std::getenv("CREDENTIALS_DIRECTORY");
      if (credentials_dir.empty() && given != nullptr) credentials_dir = given;
      if (credentials_dir.empty()) {
        co_return Wrong(what, "berthd was given none; name it in a LoadCredential= of berthd.service");
      }
      // The name comes from a journal, too: nothing but a file right there.
      if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
        co_return Wrong(what, "that is no name of a credential");
      }
      path = fmt::format("{}/{}", credentials_dir, name);
      break;
    }
  }
  auto file = co_await helper.ReadFile(path, kSecretsFileLimit + 1, deadline);
  if (!file.ok()) co_return CannotRead(file.status(), what);
  absl::StatusOr<SecretsMap> secrets = SecretsIn(*file, what);
  explicit_bzero(file->text.data(), file->text.size());
  co_return secrets;
}

}  // namespace berth
