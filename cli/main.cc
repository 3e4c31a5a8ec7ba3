#include <cstdio>

int main() {
  std::puts("dsec 0.1.0");
  return 0;
}
