// A program that does nothing but write log lines, as fast as it can: the plugin of F10.
#pragma once

#include <cstdint>
#include <string>

namespace berth {

// Writes lines of 100 bytes to standard output, one write(2) each as loggers do, until `bytes` are written;
// then puts the seconds that this took into the file `result_path`, in one step. The exit code.
int LogWriterMain(uint64_t bytes, const std::string& result_path);

}  // namespace berth
