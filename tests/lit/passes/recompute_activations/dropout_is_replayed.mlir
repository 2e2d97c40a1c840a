// Dropout draws the same numbers again: its mask is not saved.
// RUN: stagec-opt %s -p 'recompute-activations{what="dropout" modules="A"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>, %dy : !stg.tensor<[B], bf16>) {
  %y, %mask = stg.dropout %x rate "0.1" {scope = "A"}
    : (!stg.tensor<[B], bf16>) -> (!stg.tensor<[B], bf16>, !stg.tensor<[B], bool>)
  // CHECK:      %{{.*}}, %[[MASK:[^ ]*]] = stg.dropout %x rate "0.1" {{.*}}phase = "recompute"
  // CHECK-NEXT: stg.mul %dy, %[[MASK]]
  %dx = stg.mul %dy, %mask {phase = "bwd"}
    : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bool>) -> !stg.tensor<[B], bf16>
  stg.output
}
