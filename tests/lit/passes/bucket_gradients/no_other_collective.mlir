// What is not a data-parallel reduction of a gradient is not joined.
// RUN: stagec-opt %s -p 'bucket-gradients{bucket_bytes=1000}' | filecheck %s

// CHECK-NOT: bucket_bytes
%g, %w = "test.op"() : () -> (!stg.tensor<[D], fp32, partial [tp]>, !dist.shard<!stg.tensor<[D], fp32> over [dp]>)
%r = dist.all_reduce "sum" %g over [tp] : !stg.tensor<[D], fp32, partial [tp]> -> !stg.tensor<[D], fp32>
%u = dist.unshard (%w) over [dp] in "bf16" : (!dist.shard<!stg.tensor<[D], fp32> over [dp]>) -> !stg.tensor<[D], bf16>
