// What is gathered or scattered travels as if all parts were as large as the largest; of two axes ranks are counted through.
// RUN: stagec-opt %s -p 'split-unevenly,lower-to-tasks' | filecheck %s

// CHECK:      stg.dim "S.part" = "cp*tp*min(-cp.index*tp*ceildiv(S, cp*tp) - tp.index*ceildiv(S, cp*tp) + S, ceildiv(S, cp*tp))" parts "S"
// CHECK-NEXT: stg.dim "S.part.max" = "cp*tp*ceildiv(S, cp*tp)"
stg.dim "B" = "2"
stg.dim "S" = "23"
stg.dim "D" = "8"
dist.mesh <cp = 2, tp = 3>
dist.rule [S] over [cp, tp] uneven "chunk"
stg.program "M" (%x : !stg.tensor<[B, S/(cp*tp), D], bf16>, %p : !stg.tensor<[B, S, D], bf16, partial [cp, tp]>) {
  // CHECK: sched.collective "all_gather"(%x) over [cp, tp] in "bf16" bytes "2*B*D*S.part.max/(cp*tp)" to "2*B*D*S.part.max"
  // CHECK-SAME: (!stg.tensor<[B, S.part/(cp*tp), D], bf16>) -> !stg.tensor<[B, S, D], bf16>
  %g = dist.all_gather %x dim "S" over [cp, tp] : !stg.tensor<[B, S/(cp*tp), D], bf16> -> !stg.tensor<[B, S, D], bf16>
  // CHECK: sched.collective "reduce_scatter"(%p) over [cp, tp] in "bf16" bytes "2*B*D*S.part.max" to "2*B*D*S.part.max/(cp*tp)"
  %s = dist.reduce_scatter %p dim "S" over [cp, tp] : !stg.tensor<[B, S, D], bf16, partial [cp, tp]> -> !stg.tensor<[B, S/(cp*tp), D], bf16>
  // CHECK: sched.compute "add"(%x, %s) flops "B*D*S.part/(cp*tp)"
  %y = stg.add %x, %s : (!stg.tensor<[B, S/(cp*tp), D], bf16>, !stg.tensor<[B, S/(cp*tp), D], bf16>) -> !stg.tensor<[B, S/(cp*tp), D], bf16>
  stg.output
}
