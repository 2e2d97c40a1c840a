// Every stage says how many layers it has of each repeat.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.stages`: there is no stage
dist.stages [] over "pp"

// -----

// CHECK: error[E0709]: `dist.stages`: `last` has layers of 2 repeats, `first` of 1
dist.stages ["first" 3, "last" 1 2] over "pp"

// -----

// CHECK: error[E0709]: `dist.stages`: `last` has -1 layers
dist.stages ["first" 3, "last" -1] over "pp"
