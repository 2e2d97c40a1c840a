// Computation does not wait for exchanges of experts where only those of tensor parallelism are serial.
// RUN: stagec-opt %s -p 'lower-to-tasks{serial="tp"}' | filecheck %s

dist.mesh <ep = 2>
stg.program "M" (%x : !stg.tensor<[X, C/ep], bf16>) {
  // CHECK: sched.collective "all_to_all"{{.*}} on "comm.ep" {gives_way} :
  %e = dist.all_to_all %x gather "C" scatter "X" over [ep] {purpose = "ep"} : !stg.tensor<[X, C/ep], bf16> -> !stg.tensor<[X/ep, C], bf16>
  // CHECK: sched.collective "all_to_all"{{.*}} on "comm.ep" {serial} :
  %f = dist.all_to_all %e gather "X" scatter "C" over [ep] : !stg.tensor<[X/ep, C], bf16> -> !stg.tensor<[X, C/ep], bf16>
  stg.output %f : !stg.tensor<[X, C/ep], bf16>
}
