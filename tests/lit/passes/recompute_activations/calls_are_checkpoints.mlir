// What one call of a module hands to another is kept: each call is recomputed from its own arguments.
// RUN: stagec-opt %s -p 'recompute-activations{what="full" modules="Mlp"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  %y, %as, %cs = stg.repeat "L" carry(%h = %x : !stg.tensor<[B], bf16>)
      -> (!stg.tensor<[B], bf16>, !stg.stack<"L" x !stg.tensor<[B], bf16>>, !stg.stack<"L" x !stg.tensor<[B], bf16>>) {
    %a = stg.unary "exp" %h {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    // CHECK: %[[BETWEEN:.*]] = stg.unary "neg" {{.*}}scope = "Mlp"
    %b = stg.unary "neg" %a {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    %c = stg.unary "exp" %b {scope = "Mlp_2"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    // CHECK: stg.yield %{{[^,]*}}, %[[BETWEEN]], %{{[^,]*}} :
    stg.yield %c, %a, %c : !stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>
  }
  // CHECK:      reverse carry({{.*}}) slice(%[[SAVED:[^ ]*]] = {{.*}}, %[[INPUT:[^ ]*]] =
  // CHECK-NEXT: stg.unary "exp" %[[SAVED]] {scope = "Mlp_2", phase = "recompute"
  // CHECK-NEXT: stg.mul
  // CHECK-NEXT: stg.unary "exp" %[[INPUT]] {scope = "Mlp", phase = "recompute"
  // CHECK-NEXT: stg.mul
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B], bf16>)
      slice(%c = %cs : !stg.stack<"L" x !stg.tensor<[B], bf16>>, %a = %as : !stg.stack<"L" x !stg.tensor<[B], bf16>>)
      -> (!stg.tensor<[B], bf16>) attributes {phase = "bwd"} {
    %dc = stg.mul %dy, %c {phase = "bwd"} : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    %da = stg.mul %dc, %a {phase = "bwd"} : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    stg.yield %da : !stg.tensor<[B], bf16>
  }
  stg.output
}
