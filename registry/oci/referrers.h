#pragma once

#include <string>

#include "registry/oci/client.h"

namespace dsec::registry {

/// Artifacts with a `subject`: what somebody who has that manifest may ask the registry for (distribution-spec 1.1,
/// "Listing Referrers"). A registry that keeps no such lists by itself has them as indexes of images with the tag
/// "sha256-HEX" of the subject's digest, which whoever pushes or deletes an artifact has to keep.

/// Pushes the artifact under a tag. In a list that is kept so it takes the place of the one that had the tag before.
void push_referrer(OciClient& client, const std::string& repository, const std::string& tag,
                   const std::string& artifact);
/// Deletes it, and takes it out of such a list.
void delete_referrer(OciClient& client, const std::string& repository, const ManifestDocument& artifact);

}  // namespace dsec::registry
