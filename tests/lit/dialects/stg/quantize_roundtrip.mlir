// A quantized tensor has the dims of what it was.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
// CHECK: stg.quantize %x : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[S/tp, D], fp8_1x128>
%q = stg.quantize %x : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[S/tp, D], fp8_1x128>
