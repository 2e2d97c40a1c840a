// The kind is known, and there is an axis to run over.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `sched.collective`: there is no collective `broadcast`
%a = "test.op"() : () -> !stg.tensor<[D], fp32, partial [dp]>
%x = sched.collective "broadcast" (%a) over [dp] in "fp32" bytes "1" to "1" on "comm.dp" : (!stg.tensor<[D], fp32, partial [dp]>) -> !stg.tensor<[D], fp32, partial [dp]>

// -----

// CHECK: error[E0709]: `sched.collective`: a collective runs over some axis
%a = "test.op"() : () -> !stg.tensor<[D], fp32, partial [dp]>
%x = sched.collective "all_reduce" (%a) over [] in "fp32" bytes "1" to "1" on "comm" : (!stg.tensor<[D], fp32, partial [dp]>) -> !stg.tensor<[D], fp32, partial [dp]>

// -----

// CHECK: error[E0709]: `sched.collective`: there is no dtype `bf17`
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
%y = sched.collective "all_reduce" (%x) over [tp] in "bf17" bytes "2*D" to "2*D" on "comm.tp" : (!stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `sched.collective`: a stream's name has no blanks, as `comm.dp` has none, and is not empty
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
%y = sched.collective "all_reduce" (%x) over [tp] in "bf16" bytes "2*D" to "2*D" on "" : (!stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `sched.collective`: one over all pools has so many ranks
%x = "test.op"() : () -> !stg.tensor<[], fp32>
%y = sched.collective "all_reduce" (%x) over [all_pools] in "fp32" bytes "8" to "8" on "comm.all_pools" : (!stg.tensor<[], fp32>) -> !stg.tensor<[], fp32>
