// There are four ways with gradients.
// RUN: not stagec-opt %s -p 'plan-memory{gradients="shared"}' 2>&1 | filecheck %s
// CHECK: error[E0705]: the pass `plan-memory` cannot be run so
// CHECK: gradients are one of contiguous, partitioned, copied, kept
stg.program "M" () {
  stg.output
}
