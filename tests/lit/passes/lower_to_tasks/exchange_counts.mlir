// Counts travel as an all-to-all of 8 bytes for each expert.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <ep = 4>
stg.program "M" (%n : !stg.tensor<[X], i64>) {
  // CHECK: sched.collective "all_to_all"(%n) over [ep] in "i64" bytes "8*X" to "8*X"
  %m = dist.exchange_counts %n over [ep] : !stg.tensor<[X], i64> -> !stg.tensor<[X], i64>
  stg.output
}
