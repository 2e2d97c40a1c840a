// A renaming, a transposition and a broadcast are other names for memory that is there; a slice of what is computed is a copy.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <tp = 4>
stg.program "M" (%i : !stg.tensor<[S, D], bf16>) {
  // CHECK: %x = sched.compute "unary"
  %x = stg.unary "exp" %i : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[S, D], bf16>
  // CHECK-NEXT: sched.view %x
  %a = stg.rename %x [S] to [T] : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[T, D], bf16>
  // CHECK-NEXT: sched.view %x
  %b = stg.transpose %x : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[D, S], bf16>
  // CHECK-NEXT: sched.view %x
  %c = stg.broadcast %x : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[B, S, D], bf16>
  // CHECK-NEXT: sched.compute "slice"(%x) flops "0" reads "2*D*S/tp" writes "2*D*S/tp"
  %d = dist.slice %x dim "S" over [tp] : !stg.tensor<[S, D], bf16> -> !stg.tensor<[S/tp, D], bf16>
  // CHECK-NEXT: sched.view %i
  %e = dist.slice %i dim "S" over [tp] : !stg.tensor<[S, D], bf16> -> !stg.tensor<[S/tp, D], bf16>
  stg.output
}
