// For tests only: what berthctl prints with -o json.
#pragma once

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>

#include "cli/testing/run_berthctl.h"

namespace berth::cli {

template <class Message>
void ExpectJson(const std::string& text, const Message& expected) {
  Message parsed;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &parsed);
  ASSERT_TRUE(status.ok()) << status.ToString() << ": " << text;
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(parsed, expected)) << text;
}

// The member `name` of the error object that a failed run with -o json wrote.
inline std::string ErrorField(const Ended& run, const std::string& name) {
  google::protobuf::Struct document;
  if (!google::protobuf::util::JsonStringToMessage(run.err, &document).ok()) return "no JSON: " + run.err;
  return document.fields().at("error").struct_value().fields().at(name).string_value();
}

}  // namespace berth::cli
