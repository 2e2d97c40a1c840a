// A named size, over other sizes and mesh axes.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: stg.dim "E" = "D/H"
stg.dim "E" = "D/H"

// CHECK: stg.dim "B" = "2048"
stg.dim "B" = "2048"
