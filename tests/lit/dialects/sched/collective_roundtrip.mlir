// A collective of one buffer or of several as one, perhaps in buckets.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a, %b = "test.op"() : () -> (!stg.tensor<[D], fp32, partial [dp]>, !stg.tensor<[D], fp32, partial [dp]>)

// CHECK: %x = sched.collective "reduce_scatter"(%a) over [dp] in "fp32" bytes "4*D" to "4*D/dp" on "comm.dp" : (!stg.tensor<[D], fp32, partial [dp]>) -> !dist.shard<!stg.tensor<[D], fp32> over [dp]>
%x = sched.collective "reduce_scatter" (%a) over [dp] in "fp32" bytes "4*D" to "4*D/dp" on "comm.dp"
  : (!stg.tensor<[D], fp32, partial [dp]>) -> !dist.shard<!stg.tensor<[D], fp32> over [dp]>

// CHECK: %y, %z = sched.collective "all_reduce"(%a, %b) over [dp, cp] in "bf16" bytes "4*D" to "4*D" on "comm.dp.cp" bucket 26214400 : i64 first 1048576 : i64 : (!stg.tensor<[D], fp32, partial [dp]>, !stg.tensor<[D], fp32, partial [dp]>) -> (!stg.tensor<[D], fp32>, !stg.tensor<[D], fp32>)
%y, %z = sched.collective "all_reduce" (%a, %b) over [dp, cp] in "bf16" bytes "4*D" to "4*D" on "comm.dp.cp" bucket 26214400 : i64 first 1048576 : i64
  : (!stg.tensor<[D], fp32, partial [dp]>, !stg.tensor<[D], fp32, partial [dp]>) -> (!stg.tensor<[D], fp32>, !stg.tensor<[D], fp32>)
