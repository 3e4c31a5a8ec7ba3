#include <catch2/catch.hpp>

#include "cli/app.h"
#include "cli/command.h"

using namespace dsec::cli;

TEST_CASE("a command can be declared alone, under its own name", "[cli][command]") {
  Command all(nullptr, "dsec", "");
  declare_commands(all);
  REQUIRE(all.children().size() > 20);
  for (const auto& command : all.children()) {
    INFO(command->name());
    Command root(nullptr, "dsec", "");
    declare_commands(root, command->name());
    REQUIRE(root.children().size() == 1);
    CHECK(root.children().front()->name() == command->name());
    CHECK(root.children().front()->children().size() == command->children().size());
  }
}

TEST_CASE("a word that names no command declares all, to be told which is near", "[cli][command]") {
  Command root(nullptr, "dsec", "");
  declare_commands(root, "runn");
  CHECK(root.child("run"));
}
