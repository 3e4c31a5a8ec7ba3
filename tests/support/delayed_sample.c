#include "delayed_sample.h"

#include <stdarg.h>

double delayed_sum(int a, int b, int c, int d, int e, int f, int g, double h, double i, double j, double k, double l,
                   double m, double n, double o, double p) {
  return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k + 12 * l + 13 * m +
         14 * n + 15 * o + 16 * p;
}

double delayed_sum_of(int count, ...) {
  double sum = 0;
  va_list values;
  va_start(values, count);
  for (int i = 0; i < count; ++i) sum += va_arg(values, double);
  va_end(values);
  return sum;
}
