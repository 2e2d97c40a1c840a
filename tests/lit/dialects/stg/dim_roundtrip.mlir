// A named size, over other sizes and mesh axes.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: stg.dim "E" = "D/H"
stg.dim "E" = "D/H"

// CHECK: stg.dim "B" = "2048"
stg.dim "B" = "2048"

// CHECK: stg.dim "V" = "8*ceildiv(V.unpadded, 8)" pads "V.unpadded"
stg.dim "V.unpadded" = "50257"
stg.dim "V" = "8*ceildiv(V.unpadded, 8)" pads "V.unpadded"

// CHECK: stg.dim "T" = "A*B*S/X" average
stg.dim "T" = "A*B*S/X" average
