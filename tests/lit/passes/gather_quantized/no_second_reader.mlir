// What something else reads travels as it is, and so does what is no gather.
// RUN: stagec-opt %s -p gather-quantized | filecheck %s

%x, %y = "test.op"() : () -> (!stg.tensor<[B, S/tp, D], bf16>, !stg.tensor<[B, S/tp, D], bf16>)
// CHECK: dist.reshard %x : !stg.tensor<[B, S/tp, D], bf16> -> !stg.tensor<[B, S, D], bf16>
%g = dist.reshard %x : !stg.tensor<[B, S/tp, D], bf16> -> !stg.tensor<[B, S, D], bf16>
%q = stg.quantize %g : (!stg.tensor<[B, S, D], bf16>) -> !stg.tensor<[B, S, D], mxfp8>
// CHECK: dist.reshard %y : !stg.tensor<[B, S/tp, D], bf16> -> !stg.tensor<[B, S, D/tp], bf16>
%h = dist.reshard %y : !stg.tensor<[B, S/tp, D], bf16> -> !stg.tensor<[B, S, D/tp], bf16>
%r = stg.quantize %h : (!stg.tensor<[B, S, D/tp], bf16>) -> !stg.tensor<[B, S, D/tp], mxfp8>
"test.op"(%g, %q, %r) : (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[B, S, D], mxfp8>, !stg.tensor<[B, S, D/tp], mxfp8>) -> ()
