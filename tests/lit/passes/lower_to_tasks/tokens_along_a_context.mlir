// Tokens on their way to experts are that also along the axis of a context, whose other communication may run beside computation.
// RUN: stagec-opt %s -p 'lower-to-tasks{serial="tp","ep"}' | filecheck %s

dist.mesh <cp = 2>
dist.context "ring" over [cp] rotate "send_recv" balance "head_tail"
stg.program "M" (%x : !stg.tensor<[X, B/cp], bf16>, %y : !stg.tensor<[S/cp], bf16>) {
  // CHECK: sched.collective "all_to_all"(%x) {{.*}}serial
  %t = dist.all_to_all %x gather "B" scatter "X" over [cp] {purpose = "ep"} : !stg.tensor<[X, B/cp], bf16> -> !stg.tensor<[X/cp, B], bf16>
  // CHECK-NOT: serial
  %g = dist.all_gather %y dim "S" over [cp] : !stg.tensor<[S/cp], bf16> -> !stg.tensor<[S], bf16>
  stg.output
}
