// What forwards tokens between two exchanges is a part of them: it runs beside computation, which goes on meanwhile.
// RUN: stagec-opt %s -p 'lower-to-tasks' | filecheck %s

dist.mesh <en = 2, el = 2>
stg.program "M" (%c : !stg.tensor<[P/en, U/el, D], bf16>) {
  // CHECK: sched.compute "fan_out"({{.*}} on "comm.en"
  %f, %n = stg.fan_out %c to "Q" "V" forwards : (!stg.tensor<[P/en, U/el, D], bf16>) -> (!stg.tensor<[Q/en, V/el, D], bf16>, !stg.tensor<[Q/en], i64>)
  // CHECK: sched.compute "fan_out"({{.*}} on "compute"
  %g, %m = stg.fan_out %f to "X" "T" : (!stg.tensor<[Q/en, V/el, D], bf16>) -> (!stg.tensor<[X/en, T/el, D], bf16>, !stg.tensor<[X/en], i64>)
  // CHECK: sched.compute "fan_in"({{.*}} on "comm.en"
  %s = stg.fan_in %f to "P" "U" forwards : (!stg.tensor<[Q/en, V/el, D], bf16>) -> !stg.tensor<[P/en, U/el, D], bf16>
  stg.output %g, %s : !stg.tensor<[X/en, T/el, D], bf16>, !stg.tensor<[P/en, U/el, D], bf16>
}
