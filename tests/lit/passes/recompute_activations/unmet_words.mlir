// A word that means no op is an error, and so is a module without ops.
// RUN: not stagec-opt %s -p 'recompute-activations{what="softmax","exp"}' 2>&1 | filecheck %s
// RUN: not stagec-opt %s -p 'recompute-activations{what="full" modules="Mlp"}' 2>&1 | filecheck %s --check-prefix MODULE

// CHECK:      error[E0401]: there is no `softmax` in a repeated layer to recompute
// CHECK-NEXT: --> {{.*}}unmet_words.mlir:[[# @LINE + 9]]:1
// CHECK-NEXT: |
// CHECK-NEXT: stg.program "M"
// CHECK-NEXT: ^^^
// CHECK-NEXT: = help: for ops outside of repeats, name their module: `in Block`
// CHECK-NOT:  error

// MODULE:     error[E0401]: no op is in a call of `Mlp` to recompute
// MODULE-NOT: error
stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B], bf16>) -> (!stg.tensor<[B], bf16>) {
    %e = stg.unary "exp" %h : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    stg.yield %e : !stg.tensor<[B], bf16>
  }
  stg.output
}
