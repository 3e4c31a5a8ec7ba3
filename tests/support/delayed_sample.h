#pragma once

#ifdef __cplusplus
extern "C" {
#endif

/// More arguments than there are registers for.
double delayed_sum(int a, int b, int c, int d, int e, int f, int g, double h, double i, double j, double k, double l,
                   double m, double n, double o, double p);
/// Of `count` doubles.
double delayed_sum_of(int count, ...);

#ifdef __cplusplus
}
#endif
