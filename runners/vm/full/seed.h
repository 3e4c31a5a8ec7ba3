#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsec::runners {

/// A file of a seed. `name`: what cloud-init looks for, "user-data".
struct SeedFile {
  std::string name, content;
};

/// What cloud-init's data source NoCloud reads: a CD (ISO 9660, ECMA-119) with the label "cidata" and these files, in
/// the order of their names. Names are written as they are, which Linux shows in small letters; the same files give the
/// same bytes.
std::string make_seed(std::vector<SeedFile> files);

/// The files for a machine that is to be called `hostname`. `instance` differs for each machine, so that cloud-init
/// does what it does once in each.
std::vector<SeedFile> seed_files(std::string_view user_data, std::string_view instance, std::string_view hostname);

}  // namespace dsec::runners
