// Maxima are of one of two passes, and reduced along some axis.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.reduce_maxima`: a pass is forward or backward, not `sideways`
dist.reduce_maxima "sideways" "12*L" over [tp]

// -----

// CHECK: error[E0709]: `dist.reduce_maxima`: there is no axis to reduce over
dist.reduce_maxima "forward" "12*L" over []
