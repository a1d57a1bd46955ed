#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace berth {
namespace {

TEST(StatusTest, ErrnoKeepsWhatWasAttemptedAndTheNumber) {
  const absl::Status status = ErrnoStatus(EBUSY, "mount /run/x");
  EXPECT_EQ(status.message(), "mount /run/x: Device or resource busy");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrnoOf(status), EBUSY);
}

TEST(StatusTest, OtherStatusesHaveNoErrno) {
  EXPECT_EQ(ErrnoOf(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(ErrnoOf(absl::InternalError("x")), std::nullopt);
}

TEST(StatusTest, AnnotateKeepsCodeAndErrno) {
  const absl::Status status = Annotate(ErrnoStatus(ENOENT, "open a"), "plugin p");
  EXPECT_EQ(status.message(), "plugin p: open a: No such file or directory");
  EXPECT_EQ(ErrnoOf(status), ENOENT);
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

TEST(StatusTest, SystemErrorCodesBecomeErrno) {
  const boost::system::error_code error(ECONNREFUSED, boost::system::system_category());
  EXPECT_EQ(ErrnoOf(FromErrorCode(error, "connect")), ECONNREFUSED);
  EXPECT_TRUE(FromErrorCode({}, "connect").ok());
}

TEST(StatusTest, EveryGrpcCodeSurvivesBothWays) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "m");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << CodeName(status.code());
  }
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
}

TEST(StatusTest, ACodeBeyondGrpcsOwnIsUnknown) {
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(20), "x")).code(),
            absl::StatusCode::kUnknown);
  EXPECT_EQ(FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(-3), "x")).code(),
            absl::StatusCode::kUnknown);
}

TEST(StatusTest, MessagesFromOutsideAreCutAndMadePrintable) {
  const std::string hostile = "\x1b[2Jboo\n" + std::string(10000, 'a');
  const absl::Status status = FromGrpc(grpc::Status(grpc::StatusCode::INTERNAL, hostile));
  EXPECT_EQ(status.message().find('\x1b'), absl::string_view::npos);
  EXPECT_EQ(status.message().find('\n'), absl::string_view::npos);
  EXPECT_LE(status.message().size(), 4200U);
}

TEST(IsUtf8Test, TakesEveryCodePointAndNothingElse) {
  for (const char* text : {"", "plain", "\x01\x7f", "\u0085", "\u00e9", "\u20ac", "\U0001f600"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  EXPECT_TRUE(IsUtf8(std::string_view("a\0b", 3)));
  for (const char* text : {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) {
    EXPECT_FALSE(IsUtf8(text)) << Printable(text);
  }
}

TEST(PrintableTest, KeepsUtf8AndEscapesTheRest) {
  EXPECT_EQ(Printable("grün"), "grün");
  EXPECT_EQ(Printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf") << "an overlong slash";
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(Printable("\xc2\x9b"), "\\xc2\\x9b") << "a C1 control";
  EXPECT_EQ(Printable("abcdef", 3), "abc…");
}

}  // namespace
}  // namespace berth
