// Products of two activations stay, and those outside of layers.
// RUN: stagec-opt %s -p 'quantize-products{inputs="mxfp8" weights="mxfp8"}' | filecheck %s

// CHECK-NOT: stg.quantize
stg.program "M" (%x : !stg.tensor<[S, D], bf16>, %k : !stg.tensor<[T, D], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D, F], bf16>
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[S, D], bf16>) -> (!stg.tensor<[S, D], bf16>) {
    %scores = stg.contract %h, %k over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[T, D], bf16>) -> !stg.tensor<[S, T], bf16>
    %values = stg.contract %scores, %k over [T] : (!stg.tensor<[S, T], bf16>, !stg.tensor<[T, D], bf16>) -> !stg.tensor<[S, D], bf16>
    stg.yield %values : !stg.tensor<[S, D], bf16>
  }
  %z = stg.contract %y, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[S, F], bf16>
  stg.output %z : !stg.tensor<[S, F], bf16>
}
