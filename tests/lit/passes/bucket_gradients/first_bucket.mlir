// Without a size of its own the first bucket is as large as the others.
// RUN: stagec-opt %s -p 'bucket-gradients{bucket_bytes=1000}' | filecheck %s

%g = "test.op"() : () -> !stg.tensor<[D], fp32, partial [dp]>
// CHECK: dist.all_reduce_gradient{{.*}}bucket_bytes = 1000 : i64, first_bucket_bytes = 1000 : i64
%r = dist.all_reduce_gradient (%g) over [dp] in "fp32" : (!stg.tensor<[D], fp32, partial [dp]>) -> !stg.tensor<[D], fp32>
