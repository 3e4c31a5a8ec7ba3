#pragma once

#include <catch2/catch.hpp>
#include <iostream>

/// Ends a test that this host cannot run. The test runner reads the line and counts the test as skipped, which is a
/// failure in the lane that exists for it (Catch2 2 has no word for it, and 3 would count it differently).
#define SKIP_BECAUSE(reason)                                                                             \
  do {                                                                                                   \
    std::cout << "SKIP: " << Catch::getResultCapture().getCurrentTestName() << ": " << (reason) << '\n'; \
    return;                                                                                              \
  } while (false)

/// Ends a test that is about another kind of host than this one, which another lane runs. That is no skip.
#define BELONGS_TO_LANE(lane, reason)                                                                                  \
  do {                                                                                                                 \
    std::cout << "elsewhere: " << Catch::getResultCapture().getCurrentTestName() << ": " << (reason) << "; the lane '" \
              << (lane) << "' runs it\n";                                                                              \
    return;                                                                                                            \
  } while (false)
