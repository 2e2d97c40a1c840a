// What an op costs is of the exact size of an average, in names that are whole numbers.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

stg.dim "S" = "3"
stg.dim "D" = "4"
stg.dim "T" = "S/2" average
stg.program "M" (%x : !stg.tensor<[T, D], bf16>) {
  // CHECK: sched.compute "unary"(%x) flops "D*S/2" reads "D*S" writes "D*S"
  %y = stg.unary "silu" %x : (!stg.tensor<[T, D], bf16>) -> !stg.tensor<[T, D], bf16>
  stg.output
}
