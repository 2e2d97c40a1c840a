// What an inner repeat saves becomes stacks of stacks, and gradients come out as those.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %ws = stg.weight "w" : !stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[D], bf16>>>
  // CHECK: %y, %[[SAVED:[^ ]*]] = stg.repeat "L" {{.*}} -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[B, D], bf16>>>)
  // CHECK: %z, %[[INNER:[^ ]*]] = stg.repeat "M" {{.*}} -> (!stg.tensor<[B, D], bf16>, !stg.stack<"M" x !stg.tensor<[B, D], bf16>>)
  // CHECK:   stg.yield %n, %g
  // CHECK: stg.yield %z, %[[INNER]]
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) slice(%v = %ws : !stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[D], bf16>>>) -> (!stg.tensor<[B, D], bf16>) {
    %z = stg.repeat "M" carry(%g = %h : !stg.tensor<[B, D], bf16>) slice(%w = %v : !stg.stack<"M" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
      %n = stg.mul %g, %w : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      stg.yield %n : !stg.tensor<[B, D], bf16>
    }
    stg.yield %z : !stg.tensor<[B, D], bf16>
  }
  %loss = stg.reduce "sum" %y over [B, D] : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[], bf16>
  // CHECK: stg.repeat "L" reverse {{.*}} slice(%{{.*}} = %ws : {{.*}}, %[[G:[^ ]*]] = %[[SAVED]] : !stg.stack<"L" x !stg.stack<"M"
  // CHECK:   stg.repeat "M" reverse {{.*}} = %[[G]] : !stg.stack<"M" x !stg.tensor<[B, D], bf16>>)
  // CHECK: gradients {{.*}} : !stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[D], bf16>>>
  stg.output %loss : !stg.tensor<[], bf16>
}
