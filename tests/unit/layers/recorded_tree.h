#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "layers/source.h"

/// Keeps what a source emits, and checks the order that TreeSink promises.
class RecordedTree : public dsec::layers::TreeSink {
 public:
  struct Item {
    dsec::layers::Entry entry;
    std::string content;
  };

  void entry(const dsec::layers::Entry& entry) override {
    using dsec::layers::EntryType;
    finish();
    if (items_.contains(entry.path)) throw std::logic_error("twice: " + entry.path);
    if (entry.type == EntryType::HardLink && !items_.contains(entry.target))
      throw std::logic_error("link before its target: " + entry.path);
    if (entry.type == EntryType::Directory)
      for (const auto& [path, item] : items_)
        if (entry.path.empty() || path.starts_with(entry.path + "/"))
          throw std::logic_error("child before its parent: " + path);
    items_[entry.path] = {entry, {}};
    last_ = entry.path;
  }
  void data(std::string_view bytes) override { items_.at(last_).content += bytes; }

  /// Call after the last entry.
  void finish() const {
    using dsec::layers::EntryType;
    if (const auto found = items_.find(last_); found != items_.end() && found->second.entry.type == EntryType::File &&
                                               found->second.content.size() != found->second.entry.size)
      throw std::logic_error("content of the wrong size: " + last_);
  }

  const std::map<std::string, Item>& items() const { return items_; }
  bool has(const std::string& path) const { return items_.contains(path); }
  const Item& at(const std::string& path) const {
    const auto found = items_.find(path);
    if (found == items_.end()) throw std::out_of_range("not in the tree: " + path);
    return found->second;
  }
  /// Of a file, through hard links.
  const std::string& content(const std::string& path) const {
    const Item& item = at(path);
    return item.entry.type == dsec::layers::EntryType::HardLink ? content(item.entry.target) : item.content;
  }
  /// Paths in order, for comparing whole trees: "d/" directory, "f" file, "l -> t" symlink, "h => t" hard link,
  /// "-w" whiteout, "c", "b", "p" for devices and FIFOs, "!" after an opaque directory.
  std::string listing() const {
    using dsec::layers::EntryType;
    std::string out;
    for (const auto& [path, item] : items_) {
      const dsec::layers::Entry& entry = item.entry;
      out += out.empty() ? "" : " ";
      const bool whiteout = entry.type == EntryType::CharDevice && entry.major == 0 && entry.minor == 0;
      if (whiteout) out += "-";
      out += path;
      if (entry.type == EntryType::Directory) out += "/";
      if (entry.type == EntryType::Symlink) out += "->" + entry.target;
      if (entry.type == EntryType::HardLink) out += "=>" + entry.target;
      if (entry.xattrs.contains("trusted.overlay.opaque")) out += "!";
    }
    return out;
  }

 private:
  std::map<std::string, Item> items_;
  std::string last_;
};
