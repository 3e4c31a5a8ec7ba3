#include "registry/web/place.h"

#include "registry/web/http_place.h"
#include "registry/web/s3_place.h"

namespace dsec::registry {
namespace {

std::unique_ptr<ObjectPlace> open(const RegistryAddress& address, OpenMode mode, http::ClientOptions options) {
  const Config config = Config::load();
  if (address.kind == RegistryAddress::Kind::Http)
    return std::make_unique<HttpPlace>(config, std::move(options), address.base);
  auto place = std::make_unique<S3Place>(config, std::move(options), address);
  if (mode == OpenMode::Write)
    place->make_registry();
  else
    place->check_registry();
  return place;
}

}  // namespace

std::unique_ptr<ObjectPlace> open_place(const RegistryAddress& address, OpenMode mode, Progress& progress,
                                        const std::optional<Patience>& patience) {
  http::ClientOptions options = patient([&progress](const std::string& message) { progress.warn(message); });
  if (patience) limit(options, *patience);
  return open(address, mode, std::move(options));
}

void ping_place(const RegistryAddress& address) { open(address, OpenMode::Read, impatient()); }

}  // namespace dsec::registry
