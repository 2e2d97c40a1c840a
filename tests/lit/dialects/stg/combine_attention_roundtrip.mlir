// Parts of attention are weighted where they are, as terms of a sum, or added up by those who have all parts of some heads.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%o, %lse = "test.op"() : () -> (!stg.tensor<[dcp.parts/dcp, B, S, H/tp, E], bf16>, !stg.tensor<[dcp.parts, B, S, H/tp], fp32>)

// CHECK: %y = stg.combine_attention %o, %lse over [dcp] by "reduce_scatter" : (!stg.tensor<[dcp.parts/dcp, B, S, H/tp, E], bf16>, !stg.tensor<[dcp.parts, B, S, H/tp], fp32>) -> !stg.tensor<[B, S, H/tp, E], bf16, partial [dcp]>
%y = stg.combine_attention %o, %lse over [dcp] by "reduce_scatter"
  : (!stg.tensor<[dcp.parts/dcp, B, S, H/tp, E], bf16>, !stg.tensor<[dcp.parts, B, S, H/tp], fp32>) -> !stg.tensor<[B, S, H/tp, E], bf16, partial [dcp]>

%p, %l = "test.op"() : () -> (!stg.tensor<[dcp.parts, B, S, H/(tp*dcp), E], bf16>, !stg.tensor<[dcp.parts, B, S, H/(tp*dcp)], fp32>)

// CHECK: stg.combine_attention %p, %l over [dcp] by "all_to_all" :
%z = stg.combine_attention %p, %l over [dcp] by "all_to_all"
  : (!stg.tensor<[dcp.parts, B, S, H/(tp*dcp), E], bf16>, !stg.tensor<[dcp.parts, B, S, H/(tp*dcp)], fp32>) -> !stg.tensor<[B, S, H/(tp*dcp), E], bf16>
