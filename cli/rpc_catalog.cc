#include "cli/rpc_catalog.h"

#include <fmt/format.h>

#include "base/status.h"
#include "cli/failure.h"
#include "cli/values.h"
#include "csi/csi.pb.h"

namespace berth::cli {
namespace {

using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

// "NodeGetInfo" becomes "node-get-info".
std::string Kebab(std::string_view name) {
  std::string kebab;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') {
      if (!kebab.empty()) kebab += '-';
      kebab += static_cast<char>(c - 'A' + 'a');
    } else {
      kebab += c;
    }
  }
  return kebab;
}

std::vector<const MethodDescriptor*> Methods(const ServiceDescriptor* service) {
  std::vector<const MethodDescriptor*> methods;
  methods.reserve(static_cast<size_t>(service->method_count()));
  for (int i = 0; i < service->method_count(); ++i) methods.push_back(service->method(i));
  return methods;
}

// The method's name without its service's.
std::string_view Bare(const MethodDescriptor* method) {
  std::string_view name = method->name();
  if (name.starts_with(method->service()->name())) name.remove_prefix(method->service()->name().size());
  return name;
}

}  // namespace

std::vector<const ServiceDescriptor*> CsiServices() {
  const auto* file = ::csi::v1::VolumeCapability::descriptor()->file();
  std::vector<const ServiceDescriptor*> services;
  for (int i = 0; i < file->service_count(); ++i) services.push_back(file->service(i));
  return services;
}

std::string ShortName(const ServiceDescriptor* service) { return Kebab(service->name()); }

std::string ShortName(const MethodDescriptor* method) { return Kebab(Bare(method)); }

absl::StatusOr<const ServiceDescriptor*> FindService(std::string_view name) {
  std::vector<std::string> names;
  for (const ServiceDescriptor* service : CsiServices()) {
    names.push_back(ShortName(service));
    const std::string folded = Fold(name);
    if (folded == Fold(service->name()) || folded == Fold(service->full_name())) return service;
  }
  return UsageError(fmt::format("CSI has no service '{}'{}", Printable(name, 80), DidYouMean(name, names)),
                    fmt::format("There are {}", fmt::join(names, ", ")));
}

absl::StatusOr<const MethodDescriptor*> FindMethod(const ServiceDescriptor* service, std::string_view name) {
  const std::string folded = Fold(name);
  const std::string prefix = Fold(service->name());
  const MethodDescriptor* without_get = nullptr;
  int without_get_count = 0;
  std::vector<std::string> names;
  for (const MethodDescriptor* method : Methods(service)) {
    names.push_back(ShortName(method));
    const std::string bare = Fold(Bare(method));
    if (folded == bare || folded == prefix + bare) return method;
    if (bare.starts_with("get") && folded == bare.substr(3)) {
      without_get = method;
      ++without_get_count;
    }
  }
  if (without_get_count == 1) return without_get;
  return UsageError(
      fmt::format("{} has no RPC '{}'{}", service->name(), Printable(name, 80), DidYouMean(name, names)),
      fmt::format("There are {}", fmt::join(names, ", ")));
}

bool IsAlpha(const MethodDescriptor* method) {
  return method->options().GetExtension(::csi::v1::alpha_method) ||
         method->service()->options().GetExtension(::csi::v1::alpha_service);
}

}  // namespace berth::cli
