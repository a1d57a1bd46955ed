#include "base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

namespace berth {

absl::Status InitLog(const std::string& program, std::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return absl::InvalidArgumentError(fmt::format(
        "log level \"{}\" is unknown; trace, debug, info, warning, error, critical or off", level));
  }
  // systemd sets JOURNAL_STREAM where stderr goes to the journal: then each entry carries its level and
  // place as fields of its own.
  const bool journal = std::getenv("JOURNAL_STREAM") != nullptr;
  auto logger = journal ? spdlog::systemd_logger_mt(program, program) : spdlog::stderr_logger_mt(program);
  logger->set_level(parsed);
  if (journal) {
    logger->set_pattern("%v");
  } else {
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  }
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace berth
