// A message from protobuf's text format, for tests: FromText<RootPermissions>("owner: 0 mode: 0750").
#pragma once

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

namespace berth {

template <class Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

}  // namespace berth
