// Where buckets are parts of buffers (`aligned`) other stages of a pipeline have one bucket, and what stages share has one of its own.
// RUN: stagec-opt %s -p 'bucket-gradients{bucket_bytes=1000 aligned=64 bucket_end=128}' | filecheck %s
!t = !stg.tensor<[D], fp32, partial [dp]>
!r = !stg.tensor<[D], fp32>
dist.mesh <pp = 2, dp = 2>
dist.stages ["first" 1, "last" 1] over "pp"
stg.program "M" () attributes {kind = "first"} {
  %g, %h = "test.op"() : () -> (!t, !t)
  // CHECK: dist.all_reduce_gradient{{.*}}bucket_bytes = 1000 : i64, first_bucket_bytes = 1000 : i64
  %r = dist.all_reduce_gradient (%g) over [dp] in "fp32" : (!t) -> !r
  %s = dist.all_reduce_tied "w" (%h) over [pp] in "fp32" : (!t) -> !t
  // CHECK: dist.all_reduce_gradient{{.*}}bucket_bytes = 1 : i64, first_bucket_bytes = 1 : i64
  %u = dist.all_reduce_gradient (%s) over [dp] in "fp32" : (!t) -> !r
  stg.output
}
stg.program "M" () attributes {kind = "last"} {
  %g = "test.op"() : () -> !t
  // CHECK: dist.all_reduce_gradient{{.*}}bucket_bytes = 4611686018427387904 : i64
  %r = dist.all_reduce_gradient (%g) over [dp] in "fp32" : (!t) -> !r
  stg.output
}
