// ${NAME} in a plugin's arguments and environment.
//
// Pure; any thread.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <string_view>

namespace berth {

// What a name stands for. The names that plugin files may use are plugin_launch.h's.
using Variables = std::map<std::string, std::string, std::less<>>;

// `text` with each ${NAME} replaced by its value and each $$ by one $. Any other $ stands for itself, and
// values are not looked at again. INVALID_ARGUMENT for a name that is not in `variables` (the message lists
// those that are), for a ${ without its }, and for Kubernetes' $(NAME) with a name in capitals.
[[nodiscard]] absl::StatusOr<std::string> Expand(std::string_view text, const Variables& variables);

}  // namespace berth
