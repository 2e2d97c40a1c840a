// What ranks agree on under delayed scaling: so many numbers, in one pass or the other.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.reduce_maxima "forward" "12*L" over [dp, tp]
dist.reduce_maxima "forward" "12*L" over [dp, tp]
// CHECK: dist.reduce_maxima "backward" "8*L" over [tp]
dist.reduce_maxima "backward" "8*L" over [tp]
