// A weight of one pool is not shared.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.shared`: a weight is of several pools, each listed once
dist.shared "embed" first 4 of [vision]

// -----

// CHECK: error[E0709]: `dist.shared`: a weight is of several pools, each listed once
dist.shared "embed" first 4 of [vision, vision]

// -----

// CHECK: error[E0709]: `dist.shared`: a weight is of several pools, each listed once
dist.shared "embed" first -1 of [vision, text]
