// Whether this program is built with AddressSanitizer, which keeps freed memory for a while, and more of it
// than a test of memory allows else.
#pragma once

namespace berth {

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BERTH_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef BERTH_ADDRESS_SANITIZER
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace berth
