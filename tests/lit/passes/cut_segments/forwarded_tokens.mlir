// A task waits where it computes with what an exchange brings, not where that is forwarded over other links.
// RUN: stagec-opt %s -p cut-segments | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
stg.dim "mb" = "4"
dist.mesh <en = 2, el = 2>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    // CHECK: "attention"({{.*}} in F.0
    %a = sched.compute "attention" (%x) flops "B" reads "B" writes "B" on "compute" : (!t) -> !t
    // CHECK: on "comm.en" in F.0 {gives_way}
    %b = sched.collective "all_to_all" (%a) over [en] in "bf16" bytes "B" to "B" on "comm.en" {gives_way} : (!t) -> !t
    // CHECK: "fan_out"({{.*}} on "comm.en" in F.0
    %c = sched.compute "fan_out" (%b) flops "0" reads "B" writes "B" on "comm.en" : (!t) -> !t
    // CHECK: on "comm.el" in F.0 {gives_way}
    %d = sched.collective "all_to_all" (%c) over [el] in "bf16" bytes "B" to "B" on "comm.el" {gives_way} : (!t) -> !t
    // CHECK: "experts"({{.*}} in F.1
    %e = sched.compute "experts" (%d) flops "B" reads "B" writes "B" on "compute" : (!t) -> !t
    stg.yield
  }
  stg.output
}
