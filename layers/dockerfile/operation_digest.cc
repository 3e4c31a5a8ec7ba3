#include "layers/dockerfile/operation_digest.h"

namespace dsec::layers::dockerfile {
namespace {

class Texts {
 public:
  // With its length, so that where one ends counts too.
  void add(std::string_view text) {
    sum_.update(std::to_string(text.size()) + ":");
    sum_.update(text);
  }
  void add(const std::vector<std::string>& texts) {
    add(std::to_string(texts.size()));
    for (const std::string& text : texts) add(text);
  }
  Digest finish() { return sum_.finish(); }

 private:
  Sha256 sum_;
};

void add(const RunCommand& run, Texts& texts) {
  texts.add("run");
  texts.add(run.argv);
  texts.add(run.script);
  for (const auto& [name, value] : run.args) texts.add(std::vector{name, value});
  for (const RunMount& mount : run.mounts)
    texts.add(std::vector{mount.target, mount.source, mount.from, mount.id, mount.variable});
}

void add(const CopyFiles& copy, Texts& texts) {
  texts.add("copy");
  texts.add(copy.sources);
  for (const CopyFiles::Inline& file : copy.inlines) texts.add(std::vector{file.name, file.content});
  texts.add(copy.urls);
  texts.add(copy.repositories);
  texts.add(copy.exclude);
  texts.add(std::vector{copy.to, copy.owner});
}

void add(const MakeDirectory& directory, Texts& texts) {
  texts.add("directory");
  texts.add(directory.path);
}

}  // namespace

Digest digest_of_texts(const Operation& operation) {
  Texts texts;
  std::visit([&](const auto& work) { add(work, texts); }, operation.work);
  texts.add(operation.config.env);
  texts.add(std::vector{operation.config.workdir, operation.config.user});
  return texts.finish();
}

}  // namespace dsec::layers::dockerfile
