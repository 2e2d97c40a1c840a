// The gradient of a weight that is converted from fp8 is not in fp8: it adds up in the dtype of what was computed. That of a bf16 weight is in bf16.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[D], fp32>) {
  %a = stg.weight "a" : !stg.tensor<[D], fp8>
  %b = stg.weight "b" : !stg.tensor<[D], bf16>
  %a32 = stg.cast %a : (!stg.tensor<[D], fp8>) -> !stg.tensor<[D], fp32>
  %b32 = stg.cast %b : (!stg.tensor<[D], bf16>) -> !stg.tensor<[D], fp32>
  %y = stg.mul %x, %a32 : (!stg.tensor<[D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[D], fp32>
  %z = stg.mul %y, %b32 : (!stg.tensor<[D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[D], fp32>
  %loss = stg.reduce "sum" %z over [D] : (!stg.tensor<[D], fp32>) -> !stg.tensor<[], fp32>
  // CHECK: stg.output %loss{{.*}} gradients %{{[0-9]+}}, %{{[0-9]+}} : !stg.tensor<[D], fp32>, !stg.tensor<[D], bf16>
  stg.output %loss : !stg.tensor<[], fp32>
}
