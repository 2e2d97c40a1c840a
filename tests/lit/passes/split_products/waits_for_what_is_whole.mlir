// Without `bulk` what is reduced whole is waited for, behind the gradients of weights; with it these run meanwhile. A piece overlaps in either.
// RUN: stagec-opt %s -p 'split-products{pieces=2 bulk=false}' | filecheck %s
// RUN: stagec-opt %s -p 'split-products{pieces=2}' | filecheck %s --check-prefix BULK
// RUN: stagec-opt %s -p 'split-products{pieces=2 bulk=false},lower-to-tasks' | filecheck %s --check-prefix TASKS

dist.mesh <tp = 2>
stg.dim "S" = "8"
stg.program "M" (%x : !stg.tensor<[S, D], bf16>, %a : !stg.tensor<[S, F/tp], bf16>, %b : !stg.tensor<[S, F/tp], bf16>) {
  %up = stg.weight "up" : !stg.tensor<[D, F/tp], bf16>
  %gate = stg.weight "gate" : !stg.tensor<[D, F/tp], bf16>
  // CHECK:      stg.contract {{.*}} over [S]
  // CHECK:      dist.reduce_scatter %dx dim "S" over [tp] {serial}
  // BULK:       dist.reduce_scatter %dx dim "S" over [tp] {leaves_units} :
  // BULK-NEXT:  stg.contract {{.*}} over [S]
  // TASKS:      sched.collective "reduce_scatter"{{.*}}serial
  %d1 = stg.contract %a, %up over [F] {phase = "bwd"} : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %dw = stg.contract %a, %x over [S] {phase = "wgrad"} : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[S, D], bf16>) -> !stg.tensor<[D, F/tp], bf16>
  %d2 = stg.contract %b, %gate over [F] {phase = "bwd"} : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %dx = stg.add %d1, %d2 : (!stg.tensor<[S, D], bf16, partial [tp]>, !stg.tensor<[S, D], bf16, partial [tp]>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %part = dist.reduce_scatter %dx dim "S" over [tp] : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  // CHECK:      stg.repeat "tp.piece"
  // CHECK-NEXT: dist.all_gather {{.*}} {made_by = "split-products"}
  // TASKS:      sched.collective "all_gather"
  // TASKS-NOT:  serial
  %g = dist.all_gather %part dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
  %y = stg.contract %g, %up over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
  "test.op"(%y, %dw) : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[D, F/tp], bf16>) -> ()
  stg.output
}
