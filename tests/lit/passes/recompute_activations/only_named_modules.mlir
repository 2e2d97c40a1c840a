// With `modules`, ops elsewhere keep saving; a second call of a module is one of it.
// RUN: stagec-opt %s -p 'recompute-activations{what="exp" modules="Mlp"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  %y, %as, %bs = stg.repeat "L" carry(%h = %x : !stg.tensor<[B], bf16>)
      -> (!stg.tensor<[B], bf16>, !stg.stack<"L" x !stg.tensor<[B], bf16>>, !stg.stack<"L" x !stg.tensor<[B], bf16>>) {
    // CHECK: %[[A:.*]] = stg.unary "exp" %[[H:.*]] {scope = "Block"}
    %a = stg.unary "exp" %h {scope = "Block"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    %b = stg.unary "exp" %a {scope = "Block.Mlp_2"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    // CHECK: stg.yield %{{[^,]*}}, %[[A]] :
    stg.yield %b, %a, %b : !stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>
  }
  // CHECK:      reverse carry({{.*}}) slice(%[[SAVED:[^ ]*]] =
  // CHECK-NEXT: stg.unary "exp" %[[SAVED]] {scope = "Block.Mlp_2", phase = "recompute", made_by = "recompute-activations"
  // CHECK-NOT:  recompute
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B], bf16>)
      slice(%b = %bs : !stg.stack<"L" x !stg.tensor<[B], bf16>>, %a = %as : !stg.stack<"L" x !stg.tensor<[B], bf16>>)
      -> (!stg.tensor<[B], bf16>) attributes {phase = "bwd"} {
    %db = stg.mul %dy, %b {phase = "bwd"} : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    %da = stg.mul %db, %a {phase = "bwd"} : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    stg.yield %da : !stg.tensor<[B], bf16>
  }
  stg.output
}
