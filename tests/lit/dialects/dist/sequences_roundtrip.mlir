// The sequences of iterations, on each device, and the sizes that are sums over them.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.sequences over [dp] sums {S = #stg.size"sequence.new"} of "1x512@0 63x1@1500|64x1@1500, 64x4@1501*4|64x1@1501"
dist.sequences over [dp] sums {S = #stg.size"sequence.new"} of "1x512@0 63x1@1500|64x1@1500, 64x4@1501*4|64x1@1501"
