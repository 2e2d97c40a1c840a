// Stacks are reduced layer by layer, in the order of the backward pass, through nested repeats.
// What is ready before them goes before, the rest after.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="dp"}' | filecheck %s

stg.program "M" () {
  %e = stg.weight "embed" : !stg.tensor<[V, D], bf16>
  %w = stg.weight "w" : !stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[D], bf16>>>
  %h = stg.weight "head" : !stg.tensor<[D, V], bf16>
  %dh = "test.op"() : () -> !stg.tensor<[D, V], bf16, partial [dp]>
  %dw = stg.repeat "L" reverse -> (!stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[D], bf16, partial [dp]>>>) {
    %m = stg.repeat "M" reverse -> (!stg.stack<"M" x !stg.tensor<[D], bf16, partial [dp]>>) {
      %g = "test.op"() : () -> !stg.tensor<[D], bf16, partial [dp]>
      stg.yield %g : !stg.tensor<[D], bf16, partial [dp]>
    }
    stg.yield %m : !stg.stack<"M" x !stg.tensor<[D], bf16, partial [dp]>>
  }
  %de = "test.op"() : () -> !stg.tensor<[V, D], bf16, partial [dp]>
  // CHECK:      dist.all_reduce_gradient(%dh)
  // CHECK-NEXT: stg.repeat "L" reverse slice(%[[LAYER:[^ ]*]] = %dw
  // CHECK-NEXT:   stg.repeat "M" reverse slice(%[[INNER:[^ ]*]] = %[[LAYER]]
  // CHECK-NEXT:     dist.all_reduce_gradient(%[[INNER]])
  // CHECK:      dist.all_reduce_gradient(%de)
  stg.output weights %e, %w, %h : !stg.tensor<[V, D], bf16>, !stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[D], bf16>>>, !stg.tensor<[D, V], bf16>
    gradients %de, %dw, %dh : !stg.tensor<[V, D], bf16, partial [dp]>, !stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[D], bf16, partial [dp]>>>, !stg.tensor<[D, V], bf16, partial [dp]>
}
