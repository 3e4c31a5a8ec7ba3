#include "cli/app.h"
#include "cli/wiring.h"

int main(int argc, char** argv) {
  dsec::cli::Wiring wiring;
  return dsec::cli::run({argv + (argc > 0 ? 1 : 0), argv + argc}, wiring);
}
