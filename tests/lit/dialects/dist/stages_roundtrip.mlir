// Stages are listed first to last, each with its kind and its layers of every repeat that is cut.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.stages ["first" 3 0, "middle" 1 2, "last" 0 3] over "pp"
dist.stages ["first" 3 0, "middle" 1 2, "last" 0 3] over "pp"
