// A program without weights gets no optimizer step.
// RUN: stagec-opt %s -p 'insert-optimizer{algorithm="adamw"}' | filecheck %s

// CHECK: stg.program "M"
// CHECK-NOT: stg.optimizer_step
stg.program "M" () {
  stg.output
}
