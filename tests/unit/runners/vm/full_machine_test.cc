#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/files.h"
#include "runners/vm/full/full_machine.h"
#include "runners/vm/full/keys.h"
#include "runners/vm/full/machine_screen.h"

namespace dsec::runners {
namespace {

using Words = std::vector<std::string>;

FullMachine machine(const std::string& format = "raw") {
  FullMachine made;
  made.disk = "/drives/disk";
  made.format = format;
  made.top = "/drives/top";
  made.channel = "/machine/channel.sock";
  made.control = "/machine/control.sock";
  made.screen = "/machine/screen.sock";
  return made;
}

Words command(const FullMachine& machine, Accelerator accelerator = Accelerator::Tcg) {
  return full_machine_command("/usr/bin/qemu-system-x86_64", accelerator, machine);
}

bool has(const Words& words, const std::string& option, const std::string& value) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == option && words[i + 1] == value) return true;
  return false;
}

Json node(const Words& words, const std::string& name) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == "-blockdev")
      if (Json found = parse_json(words[i + 1], "node"); found["node-name"] == name) return found;
  return {};
}

TEST_CASE("a machine's disk is read-only, and what it writes goes into another file", "[runners][fullvm]") {
  const Words words = command(machine("qcow2"));
  CHECK(node(words, "disk-file")["read-only"] == true);
  CHECK(node(words, "disk")["read-only"] == true);
  CHECK(node(words, "top")["backing"] == "disk");
  CHECK_FALSE(node(words, "top-file").contains("read-only"));
  CHECK(has(words, "-device", "virtio-blk-pci,drive=top,serial=disk,bootindex=1"));
}

TEST_CASE("a qcow2 disk is told that nothing is below it", "[runners][fullvm]") {
  CHECK(node(command(machine("qcow2")), "disk").at("backing").is_null());
  CHECK_FALSE(node(command(machine("raw")), "disk").contains("backing"));
}

TEST_CASE("QEMU may start no program, and has no devices but those that are named", "[runners][fullvm]") {
  const Words words = command(machine());
  CHECK(has(words, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"));
  for (const char* flag : {"-nodefaults", "-no-user-config"})
    CHECK(std::find(words.begin(), words.end(), flag) != words.end());
  CHECK(has(words, "-M", "q35"));
  CHECK(has(words, "-vnc", "unix:/machine/screen.sock"));
}

TEST_CASE("UEFI is two flash devices, of which one is written to", "[runners][fullvm]") {
  FullMachine uefi = machine();
  uefi.uefi = {"/guest/code", "/guest/variables"};
  const Words words = command(uefi);
  CHECK(has(words, "-M", "q35,pflash0=firmware,pflash1=variables"));
  CHECK(node(words, "firmware")["read-only"] == true);
  CHECK_FALSE(node(words, "variables").contains("read-only"));
}

TEST_CASE("KVM has the host's processor, and an emulation what can be emulated", "[runners][fullvm]") {
  CHECK(has(command(machine(), Accelerator::Kvm), "-cpu", "host"));
  CHECK(has(command(machine(), Accelerator::Tcg), "-accel", "tcg,tb-size=128"));
}

TEST_CASE("text is typed as on a keyboard of the USA", "[runners][fullvm]") {
  CHECK(keys_of_text("aB 1!\n") ==
        std::vector<KeyChord>{{"a"}, {"shift", "b"}, {"spc"}, {"1"}, {"shift", "1"}, {"ret"}});
  CHECK(keys_of_text("~\"?") ==
        std::vector<KeyChord>{{"shift", "grave_accent"}, {"shift", "apostrophe"}, {"shift", "slash"}});
}

TEST_CASE("each character that can be printed can be typed", "[runners][fullvm]") {
  for (char c = ' '; c < 0x7f; ++c) CHECK_NOTHROW(keys_of_text(std::string(1, c)));
}

TEST_CASE("what has no key is refused by its place", "[runners][fullvm]") {
  REQUIRE_THROWS_WITH(keys_of_text("a\xc3\xa4"), Catch::Contains("byte 2 of the text"));
}

TEST_CASE("keys have the names that people know", "[runners][fullvm]") {
  CHECK(keys_of_name("ctrl+alt+F2") == KeyChord{"ctrl", "alt", "f2"});
  CHECK(keys_of_name("Enter") == KeyChord{"ret"});
  CHECK(keys_of_name("A") == KeyChord{"shift", "a"});
  CHECK(keys_of_name("ctrl++") == KeyChord{"ctrl", "shift", "equal"});
  CHECK(keys_of_name("super+l") == KeyChord{"meta_l", "l"});
}

TEST_CASE("what is no key is refused", "[runners][fullvm]") {
  for (const char* wrong : {"hyper", "f13", "f0", "", "ctrl+", "ctrl+ctrl"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(keys_of_name(wrong), Error);
  }
}

TEST_CASE("the size of a screen is that of its picture", "[runners][fullvm]") {
  std::string png("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\0\0\0\x03\0", 24);
  CHECK(size_of_png(png).width == 1024);
  CHECK(size_of_png(png).height == 768);
  CHECK_THROWS_AS(size_of_png(png.substr(0, 20)), Error);
  png[19] = png[18] = '\0';
  CHECK_THROWS_AS(size_of_png(png), Error);
  CHECK_THROWS_AS(size_of_png("no picture at all, only words"), Error);
}

}  // namespace
}  // namespace dsec::runners
