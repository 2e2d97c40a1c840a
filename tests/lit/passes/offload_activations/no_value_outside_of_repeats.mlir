// What is saved outside of repeated layers stays on the device, and so nothing is left to offload.
// RUN: not stagec-opt %s -p 'offload-activations{what="all"}' 2>&1 | filecheck %s

// CHECK: error[E0401]: no repeated layer saves anything to offload
stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %e = stg.unary "exp" %x : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  %d = stg.unary "neg" %e {phase = "bwd"} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  stg.output
}
